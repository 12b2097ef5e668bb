"""What the meter of the machine's processors tells apart."""

from __future__ import annotations

import os
import subprocess
import sys

from headstart.cli.bench.serve_load import CpuMeter, peak_rss_mb, process_age_s

_BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_childs_work_counts_as_ones_own_once_it_has_ended() -> None:
    meter = CpuMeter()
    before_s = meter._own()
    subprocess.run([sys.executable, "-c", _BURN], check=True)
    assert meter._own() - before_s >= 0.2
    assert set(meter.read()) == {"cpu_own", "cpu_others", "cpu_steal"}


def test_a_servers_work_counts_as_ones_own_when_it_is_named() -> None:
    burn = subprocess.Popen([sys.executable, "-c", _BURN + "\nprint('done', flush=True)\ninput()"], stdin=-1, stdout=-1)
    with burn:
        meter = CpuMeter([burn.pid])
        before_s = meter._own()
        assert burn.stdout is not None
        assert burn.stdout.readline() == b"done\n"
        assert meter._own() - before_s >= 0.2
        burn.kill()


def test_a_process_that_is_gone_counts_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert peak_rss_mb([gone.pid]) == 0.0
    assert CpuMeter([gone.pid]).read()["cpu_own"] >= 0.0


def test_peak_memory_is_never_forgotten() -> None:
    before_mb = peak_rss_mb([os.getpid()])
    memory = b"x" * (64 << 20)
    assert peak_rss_mb([os.getpid()]) >= before_mb
    del memory
    assert peak_rss_mb([os.getpid()]) >= before_mb > 1.0
    assert process_age_s() > 0.0
