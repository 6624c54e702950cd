"""A resumable folder: whoever starts, is killed, goes on or overwrites, it holds one result and never parts of two."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab import records
from discover.lab.experiments.folder import LOCK, REPLACING, Folder, FolderError, claim, share

STEPS = 3


@pytest.fixture(autouse=True, scope="module")
def quick_disk():
    """A kill loses nothing that was written, so that nothing here has to reach the disk itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


class Part(Folder):
    noun = "part"
    record = "part.json"
    files = ("numbers",)


class Work(Folder):
    """A piece of work that writes its number over and over, in files and in folders of its own."""

    noun = "work"
    record = "work.json"
    files = ("data", "steps.txt")
    inside = (("parts/*", Part),)


def work(path, number, *, resume=True, overwrite=False, fail_at=None):
    """Does the work, from where it is; returns what the folder then holds."""
    with Work(path).claim() as folder:
        same = folder.open({"number": number, "steps": STEPS}, resume=resume, overwrite=overwrite)
        if fail_at == "ready":
            raise FileNotFoundError("the data is not there")
        if not same:
            with folder.replace():
                (folder.path / "data").mkdir()
                if fail_at == "start":
                    raise OSError(errno.ENOSPC, "No space left on device")
                plan = {"number": number, "steps": STEPS}
                records.write_json(folder.path / "work.json", {"status": "running", "plan": plan})
        steps = folder.path / "steps.txt"
        done = len(steps.read_text()) if steps.exists() else 0
        for step in range(done, STEPS):
            if fail_at == step:
                raise KeyboardInterrupt
            part = folder.path / "parts" / str(step)
            with Part(part).claim() as inner:
                if not inner.open({"number": number}):
                    with inner.replace():
                        records.write_json(part / "part.json", {"plan": {"number": number}})
                records.write_text(part / "numbers", str(number))
            records.write_text(steps, str(number) * (step + 1))
        return contents(path)


def contents(path):
    """The number that everything in the folder belongs to, and how far it is; fails where it is a mixture."""
    if (path / REPLACING).exists() or not (path / "work.json").exists():
        return None
    number = records.read_json(path / "work.json")["plan"]["number"]
    steps = path / "steps.txt"
    written = steps.read_text() if steps.exists() else ""
    assert set(written) <= {str(number)}
    for part in path.glob("parts/*"):
        if (part / "part.json").exists() and not (part / REPLACING).exists():
            assert records.read_json(part / "part.json")["plan"]["number"] == number
            if (part / "numbers").exists():
                assert (part / "numbers").read_text() == str(number)
    return number, len(written)


def killed(at, *arguments, **options):
    """The same in a process that kills itself at the n-th change of what is on disk."""
    child = os.fork()
    if child == 0:
        left = iter(range(at))

        def counted(original):
            def call(*arguments, **options):
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)

            return call

        for owner, name in ((os, "replace"), (Path, "unlink"), (Path, "mkdir"), (Path, "rmdir"), (shutil, "rmtree")):
            setattr(owner, name, counted(getattr(owner, name)))
        try:
            work(*arguments, **options)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


ACTIONS = st.tuples(
    st.sampled_from([1, 2]),  # which of two pieces of work
    st.sampled_from(["resume", "start", "overwrite"]),
    st.one_of(
        st.just(("none", None)),
        st.tuples(st.just("fails"), st.sampled_from(["ready", "start", 0, 1, 2])),
        st.tuples(st.just("killed"), st.integers(0, 40)),
        st.just(("beside another", None)),
    ),
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a process that it forks")
@settings(max_examples=30)
@given(st.lists(ACTIONS, min_size=1, max_size=7))
def test_whatever_happens_a_folder_holds_one_result_and_no_lock_file(actions):
    with tempfile.TemporaryDirectory() as base:
        path = Path(base) / "out" / "work"
        for number, how, (event, moment) in actions:
            before = contents(path) if path.exists() else None
            options = {"resume": how == "resume", "overwrite": how == "overwrite"}
            if event == "killed":
                killed(moment, path, number, **options)
                after = contents(path) if path.exists() else None
                # The old one, the new one, or (killed in between) none at all.
                assert after is None or after[0] == number or after == before
                for part in Path(base).rglob(LOCK):  # what SIGKILL leaves is nobody's
                    with claim(part) as mine:
                        assert mine
                continue
            try:
                if event == "beside another" and path.exists():
                    with Work(path).claim(), pytest.raises(FolderError, match="in use by another process"):
                        work(path, number, **options)
                    raise KeyboardInterrupt
                after = work(path, number, fail_at=moment, **options)
                assert after == (number, STEPS)
            except FolderError as error:
                after = contents(path) if path.exists() else None
                if "no space" in str(error):  # an old one is gone where there was space for it before
                    assert after is None
                else:
                    assert before is not None
                    assert after == before
                    assert how == "start" or before[0] != number
            except (KeyboardInterrupt, FileNotFoundError):
                after = contents(path) if path.exists() else None
                assert after == before or after is None or after[0] == number
                if moment == "ready" or event == "beside another":
                    assert after == before
            assert not list(Path(base).rglob(LOCK))
        assert work(path, 1, overwrite=True) == (1, STEPS)
        assert sorted(item.name for item in path.iterdir()) == ["data", "parts", "steps.txt", "work.json"]


def test_a_command_that_cannot_start_leaves_nothing_behind(tmp_path):
    with pytest.raises(FileNotFoundError):
        work(tmp_path / "new" / "folder", 1, fail_at="ready")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(FolderError, match="no space left on the disk"):
        work(tmp_path / "mine", 1, fail_at="start")
    assert list((tmp_path / "mine").iterdir()) == []


def test_what_is_there_is_told_in_one_line(tmp_path):
    work(tmp_path / "w", 1)
    for call, message in (
        (
            lambda: work(tmp_path / "w", 1, resume=False),
            r"already holds a work \(unfinished\); go on with it \(--resume\), or choose",
        ),
        (lambda: work(tmp_path / "w", 2), r"holds another work \(number was 1, now 2\); choose another \(--out\), or"),
        (lambda: Part(tmp_path / "w").claim().open({}), r"not empty and holds no part \(data\); choose another"),
        (lambda: Work(tmp_path / "w" / "steps.txt").claim(), "is a file; the output must be a folder"),
        (lambda: Work(tmp_path / "w" / "steps.txt" / "x").claim(), "cannot be written: Not a directory"),
    ):
        with pytest.raises(FolderError, match=message) as error:
            call()
        assert error.value.exit_code == 2
    (tmp_path / "w" / "work.json").write_text("{")
    with pytest.raises(FolderError, match=r"cannot be resumed: .*work.json is damaged"):
        work(tmp_path / "w", 1)


def test_overwriting_keeps_what_nobody_here_wrote_wherever_it_lies(tmp_path):
    work(tmp_path, 1)
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "parts" / "1" / "notes.txt").write_text("mine")
    (tmp_path / "parts" / "list.txt").write_text("mine")
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, 2, overwrite=True, fail_at=0)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["data", "parts", "parts/1", "parts/1/notes.txt", "parts/list.txt", "thesis.tex", "work.json"]


def test_a_folder_of_strangers_is_not_overwritten(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FolderError, match=r"is not empty and holds no work \(parts\)"):
        work(tmp_path, 1, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "thesis.tex"]


HOLDER = """
import sys, time
from pathlib import Path
from discover.lab.experiments.folder import claim
with claim(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock file a.lock."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "a.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_a_killed_process_locks_nothing_and_one_that_waits_may_give_up(tmp_path, holder):
    path = tmp_path / "a.lock"
    with claim(path) as mine:
        assert not mine
    assert path.exists()
    with pytest.raises(TimeoutError), claim(path, wait=True, check=lambda: (_ for _ in ()).throw(TimeoutError)):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    began = time.monotonic()
    with claim(path, wait=True) as mine:
        assert mine
    assert time.monotonic() - began < 5
    assert not path.exists()


def test_units_are_shared_out_and_those_of_others_are_waited_for(tmp_path, holder):
    done = []

    def do(unit):
        done.append(unit)
        if unit == "c":
            holder.kill()
            holder.wait()

    share("abc", lambda unit: tmp_path / f"{unit}.lock", do)
    assert done == ["b", "c", "a"]
    assert list(tmp_path.iterdir()) == []
