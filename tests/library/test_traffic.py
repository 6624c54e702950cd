"""Collectives are read from the text of a program, in every form that the compilers write them."""

import pytest

from benchmarks.traffic import bytes_sent, collectives, count_kinds

LINES = {
    "%a = f32[8,4]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add": (
        "all-reduce",
        4,
        128,
        192.0,
    ),
    "%a = (f32[8]{0}, bf16[4]{0}) all-reduce(%x, %y), replica_groups=[2,4]<=[8], to_apply=%add": (
        "all-reduce",
        4,
        40,
        60.0,
    ),
    "%a = bf16[8,2]{1,0} all-gather(%x), replica_groups=[1,8]<=[8], dimensions={0}": ("all-gather", 8, 32, 28.0),
    "%a = (f32[2]{0}, f32[16]{0}) all-gather-start(%x), replica_groups=[1,8]<=[8]": ("all-gather", 8, 64, 56.0),
    "%a = f32[2]{0} reduce-scatter(%x), replica_groups={{0,1},{2,3}}, dimensions={0}": ("reduce-scatter", 2, 16, 8.0),
    "%a = (f32[1,3]{1,0}, /*index=1*/f32[1,3]{1,0}) all-to-all(%x, %y), replica_groups={{0,1}}": (
        "all-to-all",
        2,
        24,
        12.0,
    ),
    "%a = f32[2,8]{1,0} all-gather(%x), replica_groups=mesh['data'=2,'model'=4] {'data'}, dimensions={0}": (
        "all-gather",
        2,
        64,
        32.0,
    ),
    "%a = f32[8]{0} all-reduce(%x), replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}": (
        "all-reduce",
        4,
        32,
        48.0,
    ),
    "%a = s32[3]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}": ("collective-permute", 2, 12, 12.0),
    "ROOT %a = pred[] all-reduce(%x), replica_groups={}, to_apply=%or": ("all-reduce", 2, 1, 1.0),
}


@pytest.mark.parametrize("line", LINES)
def test_each_form_is_read(line):
    text = f"HloModule jit_step, is_scheduled=true, num_partitions=2\n  {line}\n"
    (found,) = collectives(text)
    assert (*found, found.sent) == LINES[line]
    assert bytes_sent(text) == found.sent


def test_what_only_mentions_a_collective_is_not_one():
    text = "HloModule m\n %b = f32[2]{0} get-tuple-element(%all-to-all), index=0\n %d = f32[2]{0} all-gather-done(%a)\n"
    assert collectives(text) == []


def test_small_ones_can_be_left_out_of_the_count():
    text = "HloModule m, num_partitions=2\n" + "\n".join(LINES)
    assert count_kinds(collectives(text), at_least=32) == {"all-reduce": 3, "all-gather": 3}
