# SPDX-License-Identifier: GPL-3.0-or-later
"""The exact commands for container runtimes, and the conversion of a Docker archive."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

import pytest

from rdm_core import config as configuration
from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_job.slurm import container, docker_archive
from rdm_job.slurm.script import script
from tests.unit.job.slurm.archives import archive, layer

LONG = "d" * 120
"""A name so long that a tar stores it in a header of its own."""
MOUNTS = [("/shared/jobs", "/shared/jobs"), ("/data/pile", "/data")]


def job(**slurm: Any) -> Config:
    return configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm}})


def text_of(*command: str) -> str:
    return " ".join(command)


def test_enroot_gets_slurms_variables_by_name() -> None:
    environment = ["PATH", "SLURM_PROCID", "RDM_SLURM_RUN", "AWS_SECRET_ACCESS_KEY", "CUDA_VISIBLE_DEVICES"]
    assert text_of(*container.command("enroot", "rdm-1", MOUNTS, "cuda", environment)) == (
        "enroot start --root --rw -m /shared/jobs:/shared/jobs -m /data/pile:/data "
        "-e NVIDIA_VISIBLE_DEVICES=all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility "
        "-e MELLANOX_VISIBLE_DEVICES=all -e CUDA_VISIBLE_DEVICES -e RDM_SLURM_RUN -e SLURM_PROCID rdm-1"
    )


@pytest.mark.parametrize(("accelerator", "flag"), [("cuda", " --nv"), ("rocm", " --rocm"), ("cpu", "")])
def test_apptainer_binds_the_gpu_driver(accelerator: str, flag: str) -> None:
    assert text_of(*container.command("apptainer", "/i/x.sif", MOUNTS, accelerator)) == (
        f"apptainer exec{flag} --bind /shared/jobs:/shared/jobs --bind /data/pile:/data /i/x.sif"
    )


def test_charliecloud_drops_the_nodes_path_variable() -> None:
    binds = "-b /shared/jobs:/shared/jobs -b /data/pile:/data /i/x.sqsh --"
    assert text_of(*container.command("charliecloud", "/i/x.sqsh", MOUNTS, "cpu")) == (
        f"ch-run --set-env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin {binds}"
    )
    own = container.command("charliecloud", "/i/x.sqsh", MOUNTS, "cpu", has_environment=True)
    assert text_of(*own) == f"ch-run --set-env {binds}"


def test_charliecloud_has_the_nodes_tmp_where_jobs_are_below_it() -> None:
    mounts = [("/tmp/jobs", "/tmp/jobs"), *MOUNTS]
    own = container.command("charliecloud", "/i/x.sqsh", mounts, "cpu", has_environment=True)
    assert text_of(*own).startswith("ch-run --set-env -b /tmp:/tmp -b /tmp/jobs:/tmp/jobs -b /shared/jobs:")


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("/i/x.sqsh", "/i/x.sqsh"),
        ("docker://nvcr.io/nvidia/pytorch:23.04-py3", "nvcr.io#nvidia/pytorch:23.04-py3"),
        ("docker://localhost:5000/train:1", "localhost:5000#train:1"),
        ("docker://rocm/pytorch", "rocm/pytorch"),
    ],
)
def test_pyxis_gets_options_of_srun(image: str, named: str) -> None:
    assert container.pyxis(image, MOUNTS, "rdm-1") == [
        f"--container-image={named}",
        "--container-mounts=/shared/jobs:/shared/jobs,/data/pile:/data",
        "--container-name=rdm-1",
        "--container-writable",
    ]
    assert not any("--container-name" in option for option in container.pyxis(image, MOUNTS, ""))


def test_an_image_is_made_by_the_runtime_that_runs_it() -> None:
    image = "docker://nvcr.io/nvidia/pytorch:23.04-py3"
    (enroot,) = container.import_commands("enroot", image, "/k/1.sqsh")
    assert text_of(*enroot) == "enroot import -o /k/1.sqsh docker://nvcr.io#nvidia/pytorch:23.04-py3"
    (apptainer,) = container.import_commands("apptainer", "/i/x.tar", "/k/1.sif")
    assert text_of(*apptainer) == "apptainer build /k/1.sif docker-archive:/i/x.tar"
    pull, convert = container.import_commands("charliecloud", image, "/k/1.sqsh")
    assert text_of(*pull) == "ch-image pull nvcr.io/nvidia/pytorch:23.04-py3"
    assert text_of(*convert) == "ch-convert -i ch-image -o squash nvcr.io/nvidia/pytorch:23.04-py3 /k/1.sqsh"
    kept = Path("/k")
    assert container.ready("enroot", "/i/x.sqsh", kept, "1") == "/i/x.sqsh"
    assert container.ready("enroot", "/i/x.tar", kept, "1") == "/k/1.sqsh"
    assert container.ready("apptainer", "/i/x.tar.gz", kept, "1") == "/k/1.sif"
    assert container.ready("pyxis", image, kept, "1") == image


def test_the_script_starts_the_agents_in_the_image() -> None:
    def text(pyxis: list[str] | None = None, **slurm: Any) -> str:
        return script("gpt", "/shared/jobs/gpt", "/env/bin/python", job(**slurm), pyxis or ())

    plain = text(image="/i/x.sqsh", container="none")
    assert '"${agent[@]}" step "$job" &' in plain
    assert "image" not in plain
    within = text(image="/i/x.tar", container="charliecloud")
    assert '"${agent[@]}" image "$job" || exit\n' in within
    assert '"${agent[@]}" enter "$job" &' in within
    options = container.pyxis("/i/x.sqsh", MOUNTS, "")
    of_srun = text(options, image="/i/x.sqsh", image_program="/opt/bin/rdm-trainer")
    assert f'{" ".join(options)} /opt/bin/rdm-trainer job step "$job" &' in of_srun
    assert '"${agent[@]}" image' not in of_srun
    assert '"${agent[@]}" image' in text(options, image="/i/x.tar")


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"image": "x.sqsh"}, "launcher.slurm.image is 'x.sqsh'; Slurm takes it as /shared/train.sqsh"),
        ({"image": "docker://a b"}, "launcher.slurm.image is 'docker://a b'"),
        ({"image": "/x.sqsh", "mounts": ["/a:b"]}, "launcher.slurm.mounts has '/a:b'; it takes"),
        ({"image": "/x.sqsh", "image_program": "a;b"}, "launcher.slurm.image_program is 'a;b'"),
        (
            {"image": "/x.sqsh", "mounts": ["/a:/data", "/b", "/c:/data/"]},
            "launcher.slurm.mounts has /data of the image more than once; give it one mount.",
        ),
        (
            {"image_sha256": "0" * 64},
            "launcher.slurm.image_sha256 is given, but there is no launcher.slurm.image to hold to it.",
        ),
        ({"container": "enroot"}, "there is no launcher.slurm.image to run"),
        ({"image": "/x.sif", "container": "enroot"}, "is a sif, which enroot does not run; apptainer does"),
        (
            {"image": "/x", "container": "pyxis"},
            "a directory, which pyxis does not run; apptainer or charliecloud does",
        ),
    ],
)
def test_an_image_that_cannot_run_is_refused(slurm: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in configuration.check(job(**slurm)))


def flat(path: Path) -> dict[str, str | None]:
    packed = io.BytesIO()
    docker_archive.flatten(path, packed, ["/shared/jobs", "/opt"], path.parent)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as made:
        names = made.getnames()
        assert len(set(names)) == len(names)
        found = {one.name: made.extractfile(one) for one in made}
        return {name: None if content is None else content.read().decode() for name, content in found.items()}


@pytest.mark.parametrize("name", ["image.tar", "image.tar.gz"])
def test_layers_are_merged_as_docker_does(tmp_path: Path, name: str) -> None:
    path = archive(
        tmp_path / name,
        layer(
            ("opt", None, ""),
            *((f"opt/{one}", "old", "") for one in ("kept", "changed", "removed", "first")),
            ("opt/second", None, "opt/first"),
            ("gone", None, ""),
            ("gone/below", "old", ""),
            ("anew", None, ""),
            ("anew/old", "old", ""),
            ("etc/environment", "old", ""),
        ),
        layer(
            ("opt/changed", "new", ""),
            ("opt/.wh.removed", "", ""),
            ("opt/first", "new", ""),
            ("gone", "a file", ""),
            ("anew/new", "new", ""),
            ("anew/.wh..wh..opq", "", ""),
            ("../../out", "stays inside", ""),
            (f"../../{LONG}", "stays inside", ""),
            ("link", None, f"../../{LONG}"),
        ),
    )
    assert docker_archive.image_id(path) == "1234"
    assert flat(path) == {
        "etc": None,
        "etc/environment": "PATH=/opt/bin:/bin\n",
        "ch": None,
        "ch/environment": "PATH=/opt/bin:/bin\n",
        "opt": None,
        "opt/kept": "old",
        "opt/changed": "new",
        "opt/first": "new",
        # It was a link to a file that a layer above has replaced.
        "opt/second": "old",
        "gone": "a file",
        "anew": None,
        "anew/new": "new",
        "out": "stays inside",
        LONG: "stays inside",
        "link": "stays inside",
        "shared": None,
        "shared/jobs": None,
    }


def test_invalid_archive_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(b"nothing")
    with pytest.raises(TrainerError, match="is no Docker archive"):
        docker_archive.image_id(path)
    with tarfile.open(path, "w"):
        pass
    with pytest.raises(TrainerError, match=r"it has no manifest.json; docker save makes one"):
        docker_archive.image_id(path)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("[{}]", "is no Docker archive: its manifest.json has no Config"),
        ("[1]", "is no Docker archive, or a damaged one: "),
        ("no JSON", "is no Docker archive, or a damaged one: "),
    ],
)
def test_an_invalid_manifest_is_reported_in_one_sentence(tmp_path: Path, manifest: str, message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        docker_archive.image_id(archive(tmp_path / "image.tar", manifest=manifest))


def test_a_damaged_archive_is_reported_in_one_sentence(tmp_path: Path) -> None:
    path = archive(tmp_path / "image.tar.gz", layer(("opt", "x", "")))
    whole = path.read_bytes()
    for content in (whole[:-20], whole[:40] + b"\xff" * 40 + whole[80:]):
        path.write_bytes(content)
        with pytest.raises(TrainerError, match="is no Docker archive, or a damaged one: "):
            flat(path)
    with pytest.raises(TrainerError, match=r"a damaged one: .*'missing' not found"):
        flat(archive(path, layer(("opt", None, "missing"))))


def test_full_disk_is_not_reported_as_a_damaged_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "image.tar.gz", layer(("opt", "x", "")))

    def full(dir: Path) -> IO[bytes]:
        return Path("/dev/full").open("w+b")  # the caller closes it

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(TrainerError, match=f"^{tmp_path} has no room to unpack {path}: No space left"):
        flat(path)
