"""What a program sends between devices is read from its text, as the compilers write it."""

from benchmarks.traffic import bytes_sent, collectives, count_kinds

TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=8
  %a = (f32[8]{0}, bf16[4]{0}) all-reduce(%x, %y), replica_groups=[2,4]<=[8], to_apply=%add
  %b = (f32[2]{0}, f32[16]{0}) all-gather-start(%x), replica_groups=[1,8]<=[8]
  %c = f32[16]{0} all-gather-done(%b)
  %d = f32[8]{0} all-reduce(%x), replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}
  %e = f32[2]{0} reduce-scatter(%x), replica_groups={{0,1},{2,3}}, dimensions={0}
  ROOT %f = f32[2]{0} get-tuple-element(%all-to-all), index=0
"""


def test_each_collective_counts_once_with_what_a_device_sends():
    found = collectives(TEXT)
    assert [(one.kind, one.sent) for one in found] == [
        ("all-reduce", 60.0), ("all-gather", 56.0), ("all-reduce", 48.0), ("reduce-scatter", 8.0),
    ]  # fmt: skip
    assert bytes_sent(TEXT) == 172
    assert count_kinds(found, at_least=32) == {"all-reduce": 2, "all-gather": 1}
