# SPDX-License-Identifier: GPL-3.0-or-later
"""Readings of devices, and their lines in gpustat's form.

A C library stands in for NVIDIA's driver, with the functions that the real nvidia-ml-py calls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

from rdm_job.devices import Sampler, amd, count, line, nvidia
from rdm_job.devices.visible import chosen, lists_of
from rdm_log.samples import Device

# The form that existing monitoring tools parse.
LINE = re.compile(r"\[\d+\] .{16,} \| (\d{2,3}'C, )? {0,2}\d{1,3} % \| +\d+ / +\d+ MB \|")
STANDIN = Path(__file__).parent / "standin_nvml.c"
MIB = 1024 * 1024


def test_gpustats_line_to_the_character() -> None:
    """The lines are those in the original document."""
    a10 = Device(0, "NVIDIA A10", 49, 0, 0, 22731 * MIB)
    assert line(a10) == "[0] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |"
    h200 = Device(1, "NVIDIA H200", 61, 98, 71204 * MIB, 143771 * MIB)
    assert line(h200) == "[1] NVIDIA H200      | 61'C,  98 % | 71204 / 143771 MB |"


def test_nvidia_smi_where_the_library_is_missing() -> None:
    rows = ["0, GPU-a1, NVIDIA A10, 49, 0, 0, 22731", "2, GPU-b2, NVIDIA H200, [N/A], 5, 1, 2"]
    first, second = nvidia._printed("\n".join(rows))
    assert line(first) == "[0] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |"
    assert second.celsius is None
    assert nvidia._printed("\n".join(rows), [["GPU-b"]]) == (second,)
    assert nvidia._printed("NVIDIA-SMI has failed") == ()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the stand-in for NVIDIA's library."""
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, STANDIN], check=True)
    return folder


def test_every_reading_of_nvidias_library_is_recorded(driver: Path) -> None:
    program = (
        "import json; from rdm_job.devices import Sampler, line; found = Sampler('cuda');"
        "print(json.dumps([found.missing, [one.to_json() for one in found.devices()],"
        " [line(one) for one in found.devices()],"
        " [line(one) for one in found.devices({'CUDA_VISIBLE_DEVICES': 'MIG-1'})]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": "0,1"},
        capture_output=True,
        text=True,
        check=True,
    )
    missing, devices, lines, own = json.loads(done.stdout)
    assert missing == ""
    assert lines == [
        "[0] NVIDIA A10       | 49'C,  97 % |  1024 / 22731 MB |",
        "[1] NVIDIA A10       | 50'C,  97 % |  1024 / 22731 MB |",
    ]
    # A MIG partition of the second GPU, with its own memory.
    assert own == ["[1] NVIDIA A10       | 50'C,  97 % |   512 /  4864 MB |"]
    assert (devices[0]["celsius"], devices[0]["celsius_limit"]) == (49, 98)
    assert devices[1] == {
        "index": 1,
        "name": "NVIDIA A10",
        "celsius": 50,
        "celsius_limit": 87,
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


def test_a_missing_driver_is_reported_once_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    sampler = Sampler("cuda")
    assert sampler.missing.startswith("NVIDIA's driver does not answer")
    monkeypatch.setenv("PATH", "/nowhere")
    assert sampler.devices() == ()


def test_amd_from_sysfs(tmp_path: Path) -> None:
    for card, render, vendor in ((0, 128, "0x1a03"), (1, 129, "0x1002"), (2, 130, "0x1002")):
        device = tmp_path / f"sys/class/drm/card{card}/device"
        (device / f"drm/renderD{render}").mkdir(parents=True)
        (device / "hwmon/hwmon3").mkdir(parents=True)
        (device / "ras").mkdir()
        for name, text in {
            "vendor": vendor,
            "unique_id": f"ab{card}",
            "product_name": "AMD Instinct MI250X",
            "gpu_busy_percent": "97",
            "mem_info_vram_used": str(2048 * MIB),
            "mem_info_vram_total": str(65536 * MIB),
            "hwmon/hwmon3/temp1_input": "41000",
            "hwmon/hwmon3/temp1_crit": "100000",
            "hwmon/hwmon3/power1_average": "311000000",
            "hwmon/hwmon3/power1_cap": "500000000",
            "hwmon/hwmon3/freq1_input": "1700000000",
            "ras/umc_err_count": "ue: 1\nce: 7",
        }.items():
            (device / name).write_text(f"{text}\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/kfd").touch()
    # The container may use only one of the two AMD GPUs.
    (tmp_path / "dev/dri/renderD130").touch()
    reader = amd.Reader(tmp_path)
    (device_,) = reader.devices()
    assert (reader.missing, amd.count(root=tmp_path)) == ("", 1)
    assert amd.count([["GPU-ab2"], ["0"]], tmp_path) == 1
    assert amd.count([["GPU-ab1"]], tmp_path) == 0
    assert reader.devices([["1"]]) == ()
    assert line(device_) == "[0] AMD Instinct MI250X | 41'C,  97 % |  2048 / 65536 MB |"
    assert (device_.watts, device_.watts_limit, device_.clocks) == (311, 500, {"sm": 1700})
    assert (device_.celsius, device_.celsius_limit) == (41, 100)
    assert device_.ecc == {"corrected": 7, "uncorrected": 1}
    assert amd.Reader(tmp_path / "absent").missing


class Amdsmi(types.ModuleType):
    """A stand-in for AMD's library with one GPU, which does not support every query."""

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["handle"]

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return "0000:C1:00.0"

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, str]:
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        return {"gfx_activity": 88, "mm_activity": "N/A"}

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        return {"socket_power": 0xFFFFFFFF, "current_socket_power": 650, "power_limit": 750_000_000}

    def amdsmi_get_gpu_total_ecc_count(self, handle: str) -> dict[str, Any]:
        return {"correctable_count": 3, "uncorrectable_count": "N/A"}

    def amdsmi_get_violation_status(self, handle: str) -> dict[str, Any]:
        return {"active_hbm_thrm": True, "active_vr_thrm": True, "active_ppt_pwr": "N/A"}

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, Any]]:
        return [{"pid": 4711, "memory_usage": {"vram_mem": 1000 * MIB}}, {"pid": "N/A"}]

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, int]:
        raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")


def test_amds_library_wins_over_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "sys/devices/pci0000:c0/0000:c1:00.0"
    (real / "drm/renderD128").mkdir(parents=True)
    for name, text in {"vendor": "0x1002", "mem_info_vram_used": "1024", "gpu_busy_percent": "1"}.items():
        (real / name).write_text(text)
    (tmp_path / "sys/class/drm/card0").mkdir(parents=True)
    (tmp_path / "sys/class/drm/card0/device").symlink_to(real)
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    (before,) = amd.Reader(tmp_path).devices()
    assert (before.name, before.percent, before.used) == ("AMD GPU", 1, 1024)
    monkeypatch.setitem(sys.modules, "amdsmi", Amdsmi("amdsmi"))
    (device,) = amd.Reader(tmp_path).devices()
    assert (device.name, device.percent, device.used) == ("AMD Instinct MI300X", 88, 1024)
    assert (device.watts, device.watts_limit, device.ecc) == (650, 750, {"corrected": 3})
    assert (device.throttled, device.processes) == (("sw_thermal",), {4711: 1000 * MIB})
    # The library may be installed without the driver.
    broken = types.ModuleType("amdsmi")
    monkeypatch.setitem(sys.modules, "amdsmi", broken)
    assert amd.Reader(tmp_path).devices() == (before,)


def test_cpu_is_recorded_without_accelerators() -> None:
    assert count("cpu") is None
    sampler = Sampler("cpu")
    assert (sampler.devices(), sampler.missing) == ((), "")
    sampler.processors([os.getpid()])
    assert LINE.fullmatch(line(sampler.processors([os.getpid()])))


UUIDS = ("GPU-a1", "GPU-a2", "GPU-b3", "GPU-b4")


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,7,2", [1]),
        ("1,1", [1]),
        ("GPU-b4, GPU-a1", [3, 0]),
        ("GPU-b", []),
        ("MIG-2,MIG-1", [5, 4]),
    ],
)
def test_cuda_s_variable_chooses_a_job_s_gpus(value: str | None, indices: list[int]) -> None:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value, "HIP_VISIBLE_DEVICES": "3"}
    assert chosen(UUIDS, lists_of(environment, "cuda"), ("MIG-1", "MIG-2")) == indices


@pytest.mark.parametrize(
    ("environment", "indices"),
    [
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [0]),
        # HIP counts only the devices that ROCR_VISIBLE_DEVICES has selected.
        ({"ROCR_VISIBLE_DEVICES": "GPU-b3,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
    ],
)
def test_hip_variables_are_applied_in_order(environment: dict[str, str], indices: list[int]) -> None:
    assert chosen(UUIDS, lists_of(environment, "rocm")) == indices
    assert lists_of(environment, "cpu") == []


def test_mig_partitions_count_only_when_named() -> None:
    printed = (
        "GPU 0: NVIDIA A100 (UUID: GPU-a1)\n  MIG 1g.5gb Device  0: (UUID: MIG-1)\n"
        "  MIG 1g.5gb Device  1: (UUID: MIG-2)\nGPU 1: NVIDIA A100 (UUID: GPU-a2)\n"
    )
    assert [nvidia._count(printed, lists) for lists in ((), [["1"]], [["MIG-2", "MIG-1"]])] == [2, 1, 2]
    assert nvidia._count("NVIDIA-SMI has failed", ()) == 0
