"""Labs made for real: what their links carry, how commands run in them, and that nothing is left of them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import terngrad.lab
from distributed.lab_traces import children, namespaces, processes, wait_until
from terngrad.errors import ConfigurationError, TerngradError
from terngrad.lab import LINKS, Lab, LabError, LabResult, LinkBytes, run_command
from terngrad.lab.link import parse_link
from terngrad.lab.obstacles import explain, find_programs

pytestmark = pytest.mark.distributed

HERE = Path(__file__).resolve().parent
# The shell in between has lost root's rights already: what it may not read, it does not start.
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", 'exec "$0" "$@"')
FOREVER = "while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab(2, "1gbit") as made:
        yield made


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def output_of(lab: Lab, host: int, command: list[str], **options: Any) -> str:
    process = lab.start(host, command, stdout=subprocess.PIPE, text=True, **options)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    return str(text)


def run(num_hosts: int, command: list[str], link: str = "none", **options: Any) -> tuple[Any, list[str], list[str]]:
    """The result of run_command, and the lines it wrote."""
    stdout, stderr = io.StringIO(), io.StringIO()
    result = run_command(num_hosts, link, command, stdout=stdout, stderr=stderr, **options)
    return result, stdout.getvalue().splitlines(), stderr.getvalue().splitlines()


def test_every_public_name_is_documented() -> None:
    page = (HERE.parents[1] / "docs" / "lab.md").read_text()
    members = {name for name in vars(Lab) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(LabResult)}
    names = {*terngrad.lab.__all__, *members, *fields, *inspect.signature(run_command).parameters}
    assert {name for name in names if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)} == set()
    assert set(LINKS) <= set(re.findall(r"`(\w+)`", page))


# Links


@pytest.mark.parametrize("link", ["100mbit", "1gbit"])
def test_a_stream_gets_what_the_link_promises(possible: None, link: str) -> None:
    rate = parse_link(link).bits_per_s
    with Lab(2, link) as made:
        for attempt in range(3):  # the machine may have other work
            carried = made.goodput(attempt % 2, 1 - attempt % 2)
            if abs(carried / rate - 1) < 0.1:
                break
    assert carried == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize("link", ["100mbit", "1gbit"])
def test_links_count_what_a_transfer_of_known_size_sent(possible: None, link: str) -> None:
    num_bytes = 10_000_000
    result, lines, _ = run(2, [sys.executable, str(HERE / "lab_transfer.py"), str(num_bytes)], link)
    assert result.exit_codes == (0, 0)
    assert lines == [f"[host 0] {num_bytes}"]
    receiver, sender = result.link_bytes
    assert sender.payload_sent == pytest.approx(num_bytes, rel=0.01)
    assert num_bytes < sender.sent < 1.06 * num_bytes
    assert receiver.received == sender.sent
    assert receiver.payload_received == sender.payload_sent
    assert receiver.sent == sender.received < 0.05 * num_bytes


@pytest.mark.parametrize("method", ["fp32", "terngrad"])
def test_links_carry_what_the_statistics_of_a_training_say(possible: None, method: str) -> None:
    """Of the steps alone, without what starting costs: of a long training less a short one, within three per cent."""
    carried = []
    for num_steps in (5, 45):
        result, lines, _ = run(2, [sys.executable, str(HERE / "lab_training.py"), str(num_steps), method], "1gbit")
        assert result.exit_codes == (0, 0)
        told = {line[:8]: json.loads(line[9:]) for line in lines}
        sides = [
            (*told[f"[host {i}]"], link.payload_sent, link.payload_received) for i, link in enumerate(result.link_bytes)
        ]
        carried.append(sides)
    for short, long in zip(*carried, strict=True):
        told_sent, told_received, sent, received = (b - a for a, b in zip(short, long, strict=True))
        assert sent == pytest.approx(told_sent, rel=0.03)
        assert received == pytest.approx(told_received, rel=0.03)


def test_an_idle_link_carries_nothing(possible: None) -> None:
    with Lab(2, "100mbit") as made:
        output_of(made, 0, ["sleep", "1"])
        assert made.link_bytes() == [LinkBytes(0, 0, 0), LinkBytes(1, 0, 0)]


def test_a_host_that_is_cut_off_neither_sends_nor_receives(possible: None) -> None:
    transfer = [sys.executable, str(HERE / "lab_transfer.py"), str(1 << 40)]
    with Lab(3, "100mbit") as made:
        stream = [made.start(host, transfer, stdout=subprocess.DEVNULL) for host in (0, 1)]
        assert wait_until(lambda: made.link_bytes()[0].received > 1_000_000)
        made.cut(1)
        before = made.link_bytes()
        time.sleep(0.5)
        after = made.link_bytes()
        assert after[1] == before[1]
        assert after[0].received == before[0].received  # the stream stands still
        assert [process.poll() for process in stream] == [None, None]
        assert made.goodput(0, 2, seconds=0.1) > 0  # the others go on


def test_two_labs_at_once_do_not_see_each_other(lab: Lab) -> None:
    with Lab(2, "100mbit") as other:
        assert other.environment(0) == lab.environment(0)
        before = lab.link_bytes()
        listening = [
            made.start(0, [sys.executable, str(HERE / "lab_transfer.py"), "0"], stdout=subprocess.PIPE, text=True)
            for made in (lab, other)
        ]
        sender = other.start(1, [sys.executable, str(HERE / "lab_transfer.py"), "1000"])
        assert listening[1].communicate(timeout=60)[0] == "1000\n"
        assert sender.wait(60) == 0
        assert listening[0].poll() is None
        assert lab.link_bytes() == before
        listening[0].kill()
        listening[0].communicate()


def test_a_description_has_the_link_and_what_it_carries(lab: Lab) -> None:
    found = lab.describe()
    assert (found["link"], found["rate_bits_per_s"], found["burst_bytes"]) == ("1gbit", 10**9, 100_000)
    assert found["congestion_control"] in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    assert len(found["goodput_bits_per_s"]) == 2
    assert json.loads(json.dumps(found)) == found


def test_without_a_limit_there_is_no_queue_to_describe(possible: None) -> None:
    with Lab(1, "none") as made:
        assert made.describe()["rate_bits_per_s"] is None
        assert made.describe()["goodput_bits_per_s"] == []
        assert "tbf" not in output_of(made, 0, ["cat", "/proc/self/net/dev"])


@pytest.mark.parametrize(
    ("name", "rate"), [("100mbit", 10**8), ("1gbit", 10**9), ("10gbit", 10**10), ("64kbit", 64000)]
)
def test_rates_are_those_of_tc(name: str, rate: int) -> None:
    assert parse_link(name).bits_per_s == rate
    assert parse_link(name).discipline()[:3] == ["tbf", "rate", name]
    assert "none" in LINKS
    assert parse_link("none").discipline() == []


@pytest.mark.parametrize(
    ("link", "largest"), [("100mbit", 16_000), ("1gbit", 50_000), ("10gbit", 65_536), ("none", 65_536)]
)
def test_segments_pass_the_bucket_in_one_piece(possible: None, link: str, largest: int) -> None:
    with Lab(1, link) as made:
        assert f"gso_max_size {largest}" in output_of(made, 0, ["ip", "-d", "link", "show", "eth0"])
    assert parse_link(link).segment_bytes == largest


@pytest.mark.parametrize("link", ["fast", "1Gbit", "0mbit", "1.5gbit", "100", "10mbps"])
def test_what_is_no_rate_is_refused(link: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{link}.*100mbit, 1gbit"):
        Lab(2, link)


# Processes on hosts


def test_torch_finds_its_peers_in_the_environment(possible: None) -> None:
    result, lines, errors = run(2, [sys.executable, str(HERE / "lab_allreduce.py")], "1gbit")
    assert result.exit_code == 0
    assert sorted(lines) == ["[host 0] sum [3.0]", "[host 1] sum [3.0]"]
    assert errors == []
    assert all(link.sent > 1_000_000 for link in result.link_bytes)


def test_a_command_keeps_its_folder_and_environment(lab: Lab, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "WORD": "a = b", "PWD": str(tmp_path)}
    assert output_of(lab, 1, ["pwd"], cwd=tmp_path) == f"{tmp_path}\n"
    assert set(output_of(lab, 1, ["env"], cwd=tmp_path, env=environment).splitlines()) == {
        f"{name}={value}" for name, value in environment.items()
    }


def test_the_environment_names_rank_peers_and_interface(lab: Lab) -> None:
    lines = set(output_of(lab, 1, ["env"]).splitlines())
    assert {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "GROUP_RANK=1"} <= lines
    assert {f"MASTER_ADDR={lab.address(0)}", "MASTER_PORT=29500"} <= lines
    assert {"GLOO_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME=eth0"} <= lines
    assert f"PATH={os.environ['PATH']}" in lines


def test_processes_see_themselves_and_no_others_of_the_machine(lab: Lab) -> None:
    shown, own, *seen = output_of(lab, 0, shell("echo $$; exec sh -c 'readlink /proc/self; ls /proc'")).split()
    assert int(own) >= int(shown)
    numbers = {name for name in seen if name.isdecimal()}
    assert {"1", shown} <= numbers
    assert len(numbers) < 20


def test_hosts_have_names(lab: Lab) -> None:
    assert output_of(lab, 1, ["getent", "hosts", lab.address(0)]).split()[1] == "host0"
    assert "host0" not in Path("/etc/hosts").read_text()


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -TERM $$", -15), ("kill -KILL $$", -9)])
def test_a_process_ends_as_its_command_ends(lab: Lab, script: str, code: int) -> None:
    assert lab.start(0, shell(script)).wait(60) == code


def test_a_program_that_is_not_there_is_said_to_be_missing(lab: Lab) -> None:
    process = lab.start(0, ["no-such-program"], stderr=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[1] == "no-such-program: No such file or directory\n"
    assert process.returncode == 127


def started(lab: Lab, script: str) -> tuple[subprocess.Popen[str], str]:
    """A shell on host 0 that has printed its first line, and that line."""
    process = lab.start(0, shell(script), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def gone(lab: Lab, pid: str) -> bool:
    """Whether the lab has no process of this number, by its own count."""
    return lab.start(0, ["test", "!", "-d", f"/proc/{pid}"]).wait(60) == 0


def test_a_signal_to_the_process_is_one_to_the_command(lab: Lab) -> None:
    process, _ = started(lab, f"trap 'exit 5' TERM; echo up; {FOREVER}")
    with process:
        process.terminate()
        assert process.wait(60) == 5


def test_a_signal_to_the_process_group_arrives_once(lab: Lab) -> None:
    process, _ = started(lab, f"trap 'echo got' USR1; trap 'exit 0' TERM; echo up; {FOREVER}")
    with process:
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.stdout is not None
        assert process.stdout.readline() == "got\n"
        process.terminate()
        assert process.stdout.read() == ""


def test_a_signal_reaches_what_the_command_has_started(lab: Lab) -> None:
    process, child = started(lab, "sleep 1000 & echo $!; wait")
    with process:
        process.terminate()
        process.wait(60)
    assert wait_until(lambda: gone(lab, child))


def test_killing_the_process_kills_the_command_and_what_it_started(lab: Lab) -> None:
    process, child = started(lab, "trap '' TERM; sleep 1000 & echo $!; wait")
    with process:
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    assert wait_until(lambda: gone(lab, child))


def test_the_command_does_not_outlive_the_process_that_stands_for_it(lab: Lab) -> None:
    process, command = started(lab, f"trap '' TERM; echo $$; {FOREVER}")
    with process:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    assert wait_until(lambda: gone(lab, command))


def test_a_process_can_be_killed_at_once(lab: Lab) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = lab.start(0, ["sleep", "1000"])
        process.send_signal(number)
        assert process.wait(60) == -number


def test_the_end_of_a_lab_is_the_end_of_all_in_it(possible: None) -> None:
    word = f"lab-end-{os.getpid()}"
    environment = {**os.environ, "LAB_WORD": word}
    with contextlib.suppress(ZeroDivisionError), Lab(2, "none") as made:
        process = made.start(0, shell("trap '' TERM; setsid sleep 1000 & sleep 1000"), env=environment)
        assert wait_until(lambda: len(processes(word)) == 4)  # both sleeps, their shell, and the process
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL
    assert processes(word) == set()


def test_a_lab_that_is_not_open_says_so(possible: None) -> None:
    made = Lab(1)
    with pytest.raises(LabError, match="not open"):
        made.start(0, ["true"])
    with made:
        pass
    with pytest.raises(LabError, match="not open"):
        made.link_bytes()
    with pytest.raises(LabError, match="make a new one"), made:
        pass


@pytest.mark.parametrize("num_hosts", [0, -1, 1001])
def test_a_number_of_hosts_that_cannot_be_is_refused(num_hosts: int) -> None:
    with pytest.raises(ConfigurationError, match=f"num_hosts={num_hosts}.*1 to 1000"):
        Lab(num_hosts)


def test_hosts_that_are_not_there_and_commands_that_are_none_are_refused(lab: Lab) -> None:
    for use in (lab.environment, lab.address, lab.cut, lambda host: lab.start(host, ["true"])):
        with pytest.raises(ConfigurationError, match="host 2: this lab has the hosts 0 to 1"):
            use(2)
    for command in ("true", []):
        with pytest.raises(ConfigurationError, match="list of the program"):
            lab.start(0, command)


# One command on every host


def test_every_line_stands_behind_its_host_and_never_inside_another(possible: None) -> None:
    script = "i=0; while [ $i -lt 300 ]; do printf 'part '; printf 'whole %s\\n' $i; i=$((i + 1)); done; echo $RANK >&2"
    result, lines, errors = run(3, shell(script))
    assert result.exit_codes == (0, 0, 0)
    for host in range(3):
        mine = [line for line in lines if line.startswith(f"[host {host}] ")]
        assert mine == [f"[host {host}] part whole {number}" for number in range(300)]
    assert sorted(errors) == [f"[host {host}] {host}" for host in range(3)]


def test_a_last_line_without_an_end_and_bytes_that_are_no_text_are_shown(possible: None) -> None:
    _, lines, _ = run(1, shell("printf 'a\\nb\\377'"))
    assert lines == ["[host 0] a", "[host 0] b\ufffd"]


def test_a_command_that_fails_ends_the_others(possible: None) -> None:
    result, _, _ = run(3, shell("test $RANK = 1 && exit 7; sleep 1000"))
    assert result.exit_code == 7
    assert result.exit_codes == (143, 7, 143)


def test_others_may_keep_going_after_a_failure(possible: None) -> None:
    result, lines, _ = run(2, shell("test $RANK = 1 && exit 7; sleep 0.5; echo done"), keep_going=True)
    assert (result.exit_code, result.exit_codes) == (7, (0, 7))
    assert lines == ["[host 0] done"]


def test_survivors_of_a_cut_host_may_finish(possible: None) -> None:
    script = "case $RANK in 0) sleep 1.5; echo done;; 1) sleep 0.8; exit 3;; 2) sleep 1000;; esac"
    result, lines, _ = run(3, shell(script), kill_host=2, after_s=0.2)
    assert lines == ["[host 0] done"]
    assert (result.exit_code, result.exit_codes) == (3, (0, 3, 143))
    assert result.cut_host == 2


def test_a_host_is_not_cut_off_after_the_end(possible: None) -> None:
    result, _, _ = run(2, ["true"], kill_host=1, after_s=1000)
    assert (result.exit_code, result.cut_host) == (0, None)


def test_ranks_share_the_cores_unless_told_otherwise(possible: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert run(2, shell("echo $OMP_NUM_THREADS"))[1][0].endswith(f"] {share}")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert run(2, shell("echo $OMP_NUM_THREADS"))[1][0].endswith("] 5")


def test_output_that_nobody_takes_ends_the_lab(possible: None) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_command(1, "none", shell("yes"), stdout=Closed())


def test_a_lab_works_in_any_thread(possible: None) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run(1, ["true"])[0]))
    thread.start()
    thread.join(60)
    assert found[0].exit_code == 0


@pytest.mark.parametrize("options", [{"kill_host": 2}, {"kill_host": -1}, {"kill_host": 0, "after_s": -1.0}])
def test_a_cut_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"kill_host=|after_s="):
        run_command(2, "none", ["true"], **options)


# What is left


def start_program(name: str, *arguments: str, word: str, **options: Any) -> subprocess.Popen[str]:
    """A program of this folder; it and all it starts have the word in their environment, and TMPDIR as their folder."""
    folder = str(options.get("cwd", HERE))
    return subprocess.Popen(
        [sys.executable, "-B", str(HERE / name), *arguments],
        env={**os.environ, "LAB_WORD": word, "TMPDIR": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_commands_in_order(possible: None, number: int, code: int) -> None:
    word = f"lab-interrupt-{os.getpid()}"
    script = f"trap 'echo bye; exit 0' TERM; echo up; {FOREVER}"
    with start_program("lab_run.py", "2", "none", *shell(script), word=word) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["[host 0] up\n", "[host 1] up\n"]
        process.send_signal(number)
        *lines, last = process.communicate(timeout=60)[0].splitlines()
    assert sorted(lines) == ["[host 0] bye", "[host 1] bye"]
    assert json.loads(last)["exit_codes"] == [0, 0]
    assert process.returncode == code
    assert processes(word) == set()


def test_a_second_interrupt_ends_what_does_not_heed_the_first(possible: None) -> None:
    script = f"trap 'echo no' TERM; echo up; {FOREVER}"
    with start_program("lab_run.py", "1", "none", *shell(script), word="lab-second-interrupt") as process:
        assert process.stdout is not None
        for line in ("[host 0] up\n", "[host 0] no\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGINT)
        last = process.communicate(timeout=60)[0].splitlines()[-1]
    assert json.loads(last)["exit_codes"] == [137]
    assert process.returncode == 130


def test_a_killed_lab_leaves_nothing_behind(possible: None, tmp_path: Path) -> None:
    """SIGKILL at ten moments: while Python starts, while the network is made, while it is used, while it is removed."""
    moments = random.Random(20171204)
    for number in range(10):
        word = f"lab-victim-{os.getpid()}-{number}"
        folder = tmp_path / str(number)
        folder.mkdir()
        victim = start_program("lab_victim.py", word=word, cwd=folder)
        time.sleep(moments.uniform(0, 1.5))
        used = namespaces(processes(word))
        victim.kill()
        victim.communicate(timeout=60)
        assert wait_until(lambda word=word: not processes(word)), f"round {number}: processes are left"
        assert wait_until(lambda used=used: not used & namespaces()), f"round {number}: namespaces are left"
        assert list(folder.iterdir()) == []


def test_a_forked_child_of_a_killed_lab_does_not_keep_it_alive(possible: None) -> None:
    word = f"lab-fork-{os.getpid()}"
    with start_program("lab_victim.py", "fork", word=word) as victim:
        assert victim.stdout is not None
        child = int(victim.stdout.readline())
        victim.kill()
        assert wait_until(lambda: processes(word) == {child})
        os.kill(child, signal.SIGKILL)


def test_a_lab_whose_keeper_was_killed_has_ended(possible: None) -> None:
    others = children(os.getpid())
    with Lab(1) as made:
        (keeper,) = children(os.getpid()) - others
        process, _ = started(made, "echo up; sleep 1000")
        os.kill(keeper, signal.SIGKILL)
        with process:
            assert process.wait(60) == -signal.SIGKILL
        for use in (made.link_bytes, made.describe, lambda: made.cut(0), lambda: made.start(0, ["true"])):
            with pytest.raises(LabError, match="keeper of this lab was killed"):
                use()


# Rights


def readable_python() -> str:
    """An interpreter that any user may run."""
    check = "import sys; sys.exit(sys.version_info < (3, 10))"
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if subprocess.run([*NOBODY, python, "-c", check], capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip("no Python that user 65534 may run")


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: every test here runs without root rights")
def test_a_lab_works_without_root_rights(possible: None) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs the program setpriv (package util-linux)")
    python = readable_python()
    command = [*NOBODY, python, "-B", str(HERE / "lab_run.py"), "2", "100mbit"]
    command += [python, str(HERE / "lab_transfer.py"), "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")
    if "LabError" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    line, last = done.stdout.splitlines()
    assert line == "[host 0] 1000000"
    assert json.loads(last)["link_bytes"][1]["sent"] > 1_000_000


def test_a_system_that_refuses_namespaces_is_an_error_that_names_the_ways_out(possible: None) -> None:
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        pytest.skip("needs the programs unshare and setpriv (package util-linux)")
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    command = ["unshare", "--user", "--map-root-user", *shell(script), "sh"]
    command += [sys.executable, str(HERE / "lab_run.py"), "2", "none", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "LabError: cannot make the hosts of a lab: unshare: " in done.stderr
    assert "user.max_user_namespaces must be above 0 (is 0)" in done.stderr
    assert "CAP_SYS_ADMIN" in done.stderr


def test_the_error_tells_the_state_of_every_setting(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    error = explain("unshare: Operation not permitted", settings=tmp_path)
    assert isinstance(error, TerngradError)
    assert "kernel.apparmor_restrict_unprivileged_userns must be 0 (is 1)" in str(error)
    assert "kernel.unprivileged_userns_clone must be 1 (not on this kernel)" in str(error)
    assert re.search("docker run --privileged.*sysctl -w", str(error))


def test_missing_programs_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == "tc" else f"/sbin/{name}")
    with pytest.raises(LabError, match="program tc: install the package iproute2"):
        find_programs()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(LabError, match=r"Linux.*darwin"):
        find_programs()
