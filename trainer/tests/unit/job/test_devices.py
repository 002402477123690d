# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read of devices, and gpustat's lines of them.

NVIDIA's driver is a stand-in: a library of C with the functions that the real nvidia-ml-py calls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rdm_job.devices import Sampler, amd, count, line, nvidia
from rdm_log.signs import Device

# The form of the lines that people's monitors read.
LINE = re.compile(r"\[\d+\] .{16,} \| (\d{2,3}'C, )? {0,2}\d{1,3} % \| +\d+ / +\d+ MB \|")
STANDIN = Path(__file__).parent / "standin_nvml.c"
MIB = 1024 * 1024


def test_gpustats_line_to_the_character() -> None:
    """The document's own lines."""
    a10 = Device(0, "NVIDIA A10", 49, 0, 0, 22731 * MIB)
    assert line(a10) == "[0] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |"
    h200 = Device(1, "NVIDIA H200", 61, 98, 71204 * MIB, 143771 * MIB)
    assert line(h200) == "[1] NVIDIA H200      | 61'C,  98 % | 71204 / 143771 MB |"


def test_nvidia_smi_where_the_library_is_missing() -> None:
    rows = ["0, NVIDIA A10, 49, 0, 0, 22731", "2, NVIDIA H200, [N/A], 5, 1, 2"]
    first, second = nvidia._printed("\n".join(rows))
    assert line(first) == "[0] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |"
    assert second.celsius is None
    assert nvidia._printed("NVIDIA-SMI has failed") == ()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in of NVIDIA's library."""
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, STANDIN], check=True)
    return folder


def test_all_that_nvidias_library_tells(driver: Path) -> None:
    program = (
        "import json; from rdm_job.devices import Sampler, line; found = Sampler('cuda');"
        "print(json.dumps([found.missing, [one.to_json() for one in found.devices()],"
        " [line(one) for one in found.devices()]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver)},
        capture_output=True,
        text=True,
        check=True,
    )
    missing, devices, lines = json.loads(done.stdout)
    assert missing == ""
    assert lines == [
        "[0] NVIDIA A10       | 49'C,  97 % |  1024 / 22731 MB |",
        "[1] NVIDIA A10       | 50'C,  97 % |  1024 / 22731 MB |",
    ]
    assert devices[1] == {
        "index": 1,
        "name": "NVIDIA A10",
        "celsius": 50,
        "percent": 97,
        "used": 1024 * MIB,
        "total": 22731 * MIB,
        "watts": 120.5,
        "watts_limit": 150.0,
        "clocks": {"sm": 1695, "memory": 6251},
        "throttled": ["sw_power_cap", "sw_thermal"],
        "ecc": {"corrected": 4, "uncorrected": 1},
        "xids": [79],
        "processes": {"4711": 1000 * MIB},
    }


def test_a_missing_driver_is_said_once_and_is_no_failure() -> None:
    sampler = Sampler("cuda")
    assert sampler.missing.startswith("NVIDIA's driver does not answer")
    assert sampler.devices() == nvidia._printed(nvidia._output(["nvidia-smi-absent"]))


def test_amd_from_sysfs(tmp_path: Path) -> None:
    for card, render, vendor in ((0, 128, "0x1a03"), (1, 129, "0x1002"), (2, 130, "0x1002")):
        device = tmp_path / f"sys/class/drm/card{card}/device"
        (device / f"drm/renderD{render}").mkdir(parents=True)
        (device / "hwmon/hwmon3").mkdir(parents=True)
        (device / "ras").mkdir()
        for name, text in {
            "vendor": vendor,
            "product_name": "AMD Instinct MI250X",
            "gpu_busy_percent": "97",
            "mem_info_vram_used": str(2048 * MIB),
            "mem_info_vram_total": str(65536 * MIB),
            "hwmon/hwmon3/temp1_input": "41000",
            "hwmon/hwmon3/power1_average": "311000000",
            "hwmon/hwmon3/power1_cap": "500000000",
            "hwmon/hwmon3/freq1_input": "1700000000",
            "ras/umc_err_count": "ue: 1\nce: 7",
        }.items():
            (device / name).write_text(f"{text}\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/kfd").touch()
    # The container may use one of the two.
    (tmp_path / "dev/dri/renderD130").touch()
    reader = amd.Reader(tmp_path)
    (device_,) = reader.devices()
    assert (reader.missing, amd.count(tmp_path)) == ("", 1)
    assert line(device_) == "[0] AMD Instinct MI250X | 41'C,  97 % |  2048 / 65536 MB |"
    assert (device_.watts, device_.watts_limit, device_.clocks) == (311, 500, {"sm": 1700})
    assert device_.ecc == {"corrected": 7, "uncorrected": 1}
    assert amd.Reader(tmp_path / "absent").missing


def test_without_accelerators_the_processors_count() -> None:
    assert count("cpu") is None
    sampler = Sampler("cpu")
    assert (sampler.devices(), sampler.missing) == ((), "")
    sampler.processors([os.getpid()])
    assert LINE.fullmatch(line(sampler.processors([os.getpid()])))
