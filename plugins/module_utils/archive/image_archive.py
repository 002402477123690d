# SPDX-License-Identifier: GPL-3.0-or-later
"""What is in an image archive, and whether an engine has it already.

An archive is what `docker save` writes (manifest.json) or an OCI image layout (index.json), as a tar that
is plain, gzip or zstd. It is read as a stream in constant memory; of a plain one only the headers and the
small JSON members are read. Formats:
https://github.com/moby/docker-image-spec and https://github.com/opencontainers/image-spec.

This runs on the controller and on nodes (Python 3.8 or newer), with the standard library and, for zstd,
the zstd program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import threading
import zlib
from typing import IO, Any, BinaryIO, Dict, FrozenSet, Generator, Iterable, Iterator, List, NamedTuple, Tuple

Json = Dict[str, Any]

CHUNK = 1024 * 1024
"""Bytes that are in memory at a time."""

AGAIN = "copy it there again"
MAKE = "make it with docker save, or a tar of an OCI layout"
"""What would work when an archive is damaged, or is none."""

_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))
_SUPPORTED = ("plain", "gzip", "zstd")
_JSON_MAX = 4 * 1024 * 1024  # bytes; a configuration with a long history has some 100 KB
_JSON_TOTAL = 16 * _JSON_MAX
_CONFIG_KEYS = (
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Healthcheck",
    "Labels",
    "OnBuild",
    "Shell",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
)
_NAME = re.compile(
    r"[a-zA-Z0-9]+([._-]+[a-zA-Z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:\w[\w.-]{0,127})?"
)


class ArchiveProblem(Exception):  # noqa: N818  # its text is one sentence for a person
    """The archive cannot be used.

    Args:
        text: what is wrong, beginning with the archive's path.
        remedy: what would work, in the imperative; may be empty.
    """

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


class ArchiveMissing(ArchiveProblem):
    """There is no such file."""


class Image(NamedTuple):
    """One image of an archive.

    Attributes:
        ids: every Id that an engine may give it: first the config digest (classic store), then the digests
            of its manifest and of the index above it (containerd store).
        diff_ids: the digests of its uncompressed layers, lowest first.
        tags: its names in the archive, in the short form that Docker shows.
        architecture: such as amd64.
        traits: what else tells it from an image with the same layers: see `traits`.
        config_path: the member of the archive that holds its configuration.
        layer_paths: the members that hold its layers, lowest first.
        layer_sizes: the bytes of these members.
    """

    ids: List[str]
    diff_ids: List[str]
    tags: List[str]
    architecture: str
    traits: Json
    config_path: str
    layer_paths: List[str]
    layer_sizes: List[int]


class ArchiveIndex(NamedTuple):
    """What is in an archive.

    Attributes:
        compression: plain, gzip or zstd.
        size: bytes of the file.
        sha256: of the file, in hexadecimal; empty when nobody has read all of it.
        unpacked: bytes of the uncompressed tar, up to the end of its last member.
        classic: it has the manifest.json that every engine can load.
        images: the images in it.
    """

    compression: str
    size: int
    sha256: str
    unpacked: int
    classic: bool
    images: List[Image]

    def to_json(self) -> Json:
        """Return it as plain JSON values."""
        return {**self._asdict(), "images": [image._asdict() for image in self.images]}

    @classmethod
    def from_json(cls, value: Json) -> ArchiveIndex:
        """Return the index that `to_json` was called on.

        Raises:
            KeyError, TypeError: the value was not made by `to_json`.
        """
        return cls(**{**value, "images": [Image(**image) for image in value["images"]]})


# ---- decisions


def short_name(name: str) -> str:
    """Return an image name as Docker shows it: without docker.io/library, with its tag.

    Raises:
        ArchiveProblem: this cannot be the name of an image in an archive.
    """
    for prefix in ("index.docker.io/", "docker.io/"):
        if name.startswith(prefix):
            name = name[len(prefix) :]
            if name.startswith("library/"):
                name = name[len("library/") :]
    if not _NAME.fullmatch(name):
        raise ArchiveProblem("{0!r} is not an image name".format(name), "write repository:tag")
    return name if ":" in name.rpartition("/")[2] else name + ":latest"


def traits(created: str, config: Json | None) -> Json:
    """Return what tells apart two images with the same layers, from an image's or an engine's JSON.

    Engines write empty values and fractions of seconds differently; both are evened out.
    """
    kept = {key: value for key, value in (config or {}).items() if key in _CONFIG_KEYS and value}
    moment, _, fraction = created.rstrip("Z").partition(".")
    if moment.startswith("0001-"):  # how Go writes "not known"
        moment = ""
    return {"created": "{0}.{1}".format(moment, fraction.rstrip("0")).rstrip("."), "config": kept}


def same_image(image: Image, inspected: Json) -> bool:
    """Return whether what the engine shows under /images/NAME/json is this image.

    The Id is the config digest in the classic store and the digest of a manifest in the containerd store,
    where it changes when layers are compressed anew; then layers and configuration decide.
    """
    if inspected["Id"] in image.ids:
        return True
    layers = (inspected.get("RootFS") or {}).get("Layers") or []
    return layers == image.diff_ids and image.traits == traits(
        inspected.get("Created") or "", inspected.get("Config")
    )


def wanted_images(
    index: ArchiveIndex, path: str, name: str, architecture: str
) -> list[tuple[Image, list[str]]]:
    """Return the images that must be in the engine, each with its tags.

    Args:
        index: of the archive.
        path: of the archive, for messages.
        name: the expected tag; empty means all images with the tags that the archive gives them.
        architecture: the engine's, such as amd64; an archive may hold an image for several.

    Raises:
        ArchiveProblem: the archive does not hold such an image.
    """
    images = [image for image in index.images if image.architecture in ("", architecture)]
    if not images:
        raise ArchiveProblem(
            "{0} holds an image for {1}, and this engine runs {2}".format(
                path, ", ".join(sorted({image.architecture for image in index.images})), architecture
            ),
            "use an archive for {0}".format(architecture),
        )
    if not name:
        return [(image, image.tags) for image in images]
    name = short_name(name)
    for image in images:
        if name in image.tags:
            return [(image, [name])]
    if len(images) == 1 and not images[0].tags:
        return [(images[0], [name])]
    tags = sorted({tag for image in images for tag in image.tags})
    raise ArchiveProblem(
        "{0} does not hold {1}; it holds {2}".format(
            path, name, ", ".join(tags) or "several images without name"
        ),
        "use a name that it holds" if tags else "make an archive of one image",
    )


def new_layers(images: Iterable[Image], chains: Iterable[List[str]]) -> Dict[str, int]:
    """Return the layers that an engine would have to store, with the bytes that they have in the archive.

    An engine that has an image with the same lowest layers shares them.

    Args:
        images: what is to be loaded.
        chains: the diff_ids of each image that the engine has, lowest first.
    """
    known = {tuple(chain[:length]) for chain in chains for length in range(1, len(chain) + 1)}
    new: Dict[str, int] = {}
    for image in images:
        for height, (diff_id, size) in enumerate(zip(image.diff_ids, image.layer_sizes), start=1):
            if tuple(image.diff_ids[:height]) not in known:
                new[diff_id] = max(size, new.get(diff_id, 0))
    return new


def spare_members(index: ArchiveIndex, new: Iterable[str]) -> FrozenSet[str]:
    """Return the members of an archive that an engine with the classic store would not open: it has them.

    Such an engine unpacks all that it is sent before it looks; what it has need not be sent. This is told
    only of plain archives: of others the stream has to be read anyway, and nothing can be skipped in it.

    Args:
        index: of the archive.
        new: the diff_ids of the layers that the engine has to store; see `new_layers`.
    """
    if index.compression != "plain" or not index.classic:
        return frozenset()
    needed = set(new)
    layers = [pair for image in index.images for pair in zip(image.diff_ids, image.layer_paths)]
    kept = {path for diff_id, path in layers if diff_id in needed}
    return frozenset(path for _diff_id, path in layers if path not in kept)


def room_to_load(archives: Iterable[Json], classic: bool) -> int:
    """Return the bytes that an engine certainly needs for loading these archives, one after the other.

    An engine with the classic store first unpacks an archive, which it then throws away, and then stores
    the layers that it does not have; with the containerd store it takes the layers from the stream.

    Args:
        archives: what `inspection` told of each of them.
        classic: the engine has the classic store.
    """
    stored: Dict[str, int] = {}
    most = 0
    for archive in archives:
        stored.update(archive["new_layers"])
        most = max(most, sum(stored.values()) + (archive["unpacked"] if classic else 0))
    return most


def sentence(problem: str, remedy: str) -> str:
    """Return what is wrong and what would work, for a task that fails."""
    return "{0}: {1}".format(problem, remedy) if remedy else problem


def inspection(path: str, problem: str = "", remedy: str = "") -> Json:
    """Return what an inspection tells: here of an archive that cannot be used, or of which nothing is needed.

    Args:
        path: of the archive.
        problem: what is wrong, in one sentence.
        remedy: what would work.
    """
    return {
        "changed": False,
        "actions": [],
        "copy_needed": False,
        "path": path,
        "problem": problem,
        "remedy": remedy,
        "needed": False,
        "load": False,
        "unpacked": 0,
        "new_layers": {},
    }


# ---- reading


def index_archive(path: str, digest: bool = False) -> ArchiveIndex:
    """Read an archive and return what is in it.

    A compressed archive is read whole, and its sha256 is a by-product; a plain one is read whole only for
    its digest.

    Args:
        path: of the archive.
        digest: the sha256 of the file is wanted.

    Raises:
        ArchiveProblem: missing, unreadable, truncated, corrupt, or not an image archive.
    """
    with _explained(path), open(path, "rb") as raw:
        compression = _compression(raw, path)
        size = os.fstat(raw.fileno()).st_size
        hasher = hashlib.sha256()
        if compression == "plain":
            if digest:
                for _chunk in _chunks(_Hashing(raw, hasher)):
                    pass
            raw.seek(0)
            members = _read_members(raw, path, seekable=True)
        else:
            with _decompressed(_Hashing(raw, hasher), compression, path) as stream:
                members = _read_members(stream, path, seekable=False)
                for _chunk in _chunks(stream):  # to the end: for the digest and the checksums
                    pass
    known = digest or compression != "plain"
    return ArchiveIndex(
        compression=compression,
        size=size,
        sha256=hasher.hexdigest() if known else "",
        unpacked=members.end,
        classic="manifest.json" in members.documents,
        images=_images(members, path),
    )


def load_chunks(
    path: str, index: ArchiveIndex, spare: FrozenSet[str] = frozenset()
) -> Generator[bytes, None, None]:
    """Yield an archive in a form that every engine loads.

    Engines read plain and gzip tars, but not all read zstd, and old ones want the manifest.json that an OCI
    layout lacks: it is added at the end of the tar.

    Args:
        path: of the archive.
        index: of the archive.
        spare: members to leave out; see `spare_members`.

    Raises:
        ArchiveProblem: the archive can no longer be read.
    """
    with _explained(path), open(path, "rb") as raw:
        if spare:
            yield from _without(raw, spare)
            return
        if index.classic and index.compression in ("plain", "gzip"):
            yield from _chunks(raw)
            return
        with _decompressed(raw, index.compression, path) as stream:
            if index.classic:
                yield from _chunks(stream)
                return
            left = index.unpacked
            while left:
                chunk = stream.read(min(CHUNK, left))
                if not chunk:
                    raise EOFError
                left -= len(chunk)
                yield chunk
            yield _classic_manifest(index)
            for _chunk in _chunks(stream):
                pass


def _without(raw: BinaryIO, spare: FrozenSet[str]) -> Iterator[bytes]:
    """Yield a plain tar without some of its members."""
    with tarfile.open(fileobj=raw, mode="r:") as archive:
        begins = [(member.offset, member.name) for member in archive]
    ends = [offset for offset, _name in begins[1:]] + [archive.offset]
    for (begin, name), end in zip(begins, ends):
        if name in spare:
            continue
        raw.seek(begin)
        while begin < end:
            chunk = raw.read(min(CHUNK, end - begin))
            if not chunk:
                raise EOFError
            begin += len(chunk)
            yield chunk
    yield bytes(2 * tarfile.BLOCKSIZE)


def file_sha256(path: str) -> str:
    """Return the sha256 of a file, in hexadecimal.

    Raises:
        ArchiveProblem: missing or unreadable.
    """
    hasher = hashlib.sha256()
    with _explained(path), open(path, "rb") as raw:
        for _chunk in _chunks(_Hashing(raw, hasher)):
            pass
    return hasher.hexdigest()


# ---- remembering


def default_cache_dir() -> str:
    """Return where indexes are kept: for the machine when root, else for the user."""
    return "/var/cache/rdm" if os.geteuid() == 0 else os.path.expanduser("~/.cache/rdm")


def cached_index(path: str, sha256: str, cache_dir: str, stale: bool = False) -> ArchiveIndex:
    """Return what is in an archive, reading it only when it has changed since the last time.

    An index that was cheap to make (plain archive, no digest) is not kept. Processes that ask for the same
    archive at the same time wait for the first one.

    Args:
        path: of the archive.
        sha256: what its digest must be, in hexadecimal; empty means that any will do.
        cache_dir: where indexes are kept; made when missing. Where that is not possible, none is kept.
        stale: when the archive is missing, what was in it the last time will do.

    Raises:
        ArchiveMissing: there is no archive, and none was remembered.
        ArchiveProblem: as `index_archive`, or the digest differs.
    """
    if not sha256 and not stale and _is_plain(path):
        return index_archive(path)
    with _cache_file(path, cache_dir) as cache:
        if stale and not os.path.exists(path):
            known = _recall(cache, None)
            return known if known is not None else index_archive(path)
        with _explained(path):
            identity = _identity(path)
        index = _recall(cache, identity)
        if index is None or (sha256 and not index.sha256):
            index = index_archive(path, digest=bool(sha256))
            if cache is not None and index.sha256:
                _remember(cache, identity, index)
    if sha256 and index.sha256 != sha256.lower():
        raise ArchiveProblem(
            "{0} has sha256 {1}, not {2}".format(path, index.sha256, sha256.lower()),
            "use the right archive, or correct the sha256",
        )
    return index


def forget_index(path: str, cache_dir: str) -> None:
    """Remove what was remembered of an archive, and the directory when nothing else is in it."""
    with contextlib.suppress(OSError):
        os.unlink(_cache_path(path, cache_dir))
    with contextlib.suppress(OSError):
        os.rmdir(cache_dir)


def _is_plain(path: str) -> bool:
    with _explained(path), open(path, "rb") as raw:
        return _compression(raw, path) == "plain"


def _cache_path(path: str, cache_dir: str) -> str:
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:32]
    return os.path.join(cache_dir, name + ".json")


@contextlib.contextmanager
def _cache_file(path: str, cache_dir: str) -> Iterator[IO[str] | None]:
    """Open and lock the file that remembers an archive; None where that is not possible."""
    try:
        os.makedirs(cache_dir, mode=0o700, exist_ok=True)
        cache = open(_cache_path(path, cache_dir), "a+", encoding="utf-8")  # noqa: SIM115
    except OSError:
        yield None
        return
    with cache:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(cache, fcntl.LOCK_EX)
        yield cache
        if os.fstat(cache.fileno()).st_size == 0:
            forget_index(path, cache_dir)


def _identity(path: str) -> list[Any]:
    status = os.stat(path)
    return [os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino]


def _recall(cache: IO[str] | None, identity: list[Any] | None) -> ArchiveIndex | None:
    """Return the remembered index if it is of this very file (None: of any)."""
    if cache is None:
        return None
    cache.seek(0)
    try:
        entry = json.load(cache)
        index = ArchiveIndex.from_json(entry["index"])
    except (ValueError, KeyError, TypeError):  # empty, cut short, or of another version
        return None
    return index if identity in (None, entry["identity"]) else None


def _remember(cache: IO[str], identity: list[Any], index: ArchiveIndex) -> None:
    entry = json.dumps({"identity": identity, "index": index.to_json()})
    with contextlib.suppress(OSError):  # a disk that is full is told where it matters
        cache.truncate(0)
        os.write(cache.fileno(), entry.encode())


# ---- streams


class _Hashing:
    """A readable file that feeds what is read to a hasher."""

    def __init__(self, raw: BinaryIO, hasher: Any) -> None:
        self._raw = raw
        self._hasher = hasher

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._hasher.update(data)
        return data


def _chunks(stream: Any) -> Iterator[bytes]:
    while True:
        chunk = stream.read(CHUNK)
        if not chunk:
            return
        yield chunk


def _compression(raw: BinaryIO, path: str) -> str:
    start = raw.read(8)
    raw.seek(0)
    for magic, name in _MAGIC:
        if start.startswith(magic):
            if name not in _SUPPORTED:
                raise ArchiveProblem(
                    "{0} is compressed with {1}".format(path, name), "use a plain tar, gzip or zstd"
                )
            return name
    return "plain"


@contextlib.contextmanager
def _decompressed(raw: Any, compression: str, path: str) -> Iterator[Any]:
    """Give the uncompressed stream of a file-like object; whatever is left of `raw` is read at the end."""
    if compression == "gzip":
        with gzip.GzipFile(fileobj=raw, mode="rb") as stream:
            yield stream
    elif compression == "zstd":
        with _zstd(raw, path) as stream:
            yield stream
    else:
        yield raw
    for _chunk in _chunks(raw):
        pass


@contextlib.contextmanager
def _zstd(raw: Any, path: str) -> Iterator[Any]:
    """Decompress through the zstd program (Python has zstd from 3.14 only)."""
    try:
        process = subprocess.Popen(
            ["zstd", "-dcq", "--long=31"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise ArchiveProblem(
            "{0} is compressed with zstd, and the program zstd is missing here".format(path), "install it"
        ) from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    failures: list[BaseException] = []
    feeder = threading.Thread(target=_feed, args=(raw, process.stdin, failures), daemon=True)
    feeder.start()
    finished = False
    try:
        try:
            yield process.stdout
            finished = not process.stdout.read(1)
        except (EOFError, tarfile.TarError):
            finished = True  # the end came early: zstd may say why
            raise
        finally:
            if not finished:
                process.kill()
            process.stdout.close()
            words = process.stderr.read().decode("utf-8", "replace").strip()
            process.stderr.close()
            status = process.wait()
            feeder.join()
            if failures:
                raise failures[0]
            if finished and status not in (0, -13):  # -13: we stopped reading before its end
                raise (
                    EOFError if "premature end" in words else zlib.error(words or "status {0}".format(status))
                )
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _feed(raw: Any, sink: IO[bytes], failures: list[BaseException]) -> None:
    try:
        for chunk in _chunks(raw):
            sink.write(chunk)
    except BrokenPipeError:
        pass  # zstd has ended; its status says whether that was right
    except Exception as error:
        failures.append(error)
    finally:
        with contextlib.suppress(OSError):
            sink.close()


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn what may go wrong with a file into one sentence."""
    try:
        yield
    except EOFError:
        raise ArchiveProblem("{0} is truncated (it ends in the middle)".format(path), AGAIN) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise ArchiveProblem("{0} is corrupt ({1})".format(path, error), AGAIN) from None
    except tarfile.ReadError as error:
        if "unexpected end" in str(error):
            raise ArchiveProblem("{0} is truncated (it ends in the middle)".format(path), AGAIN) from None
        raise ArchiveProblem(
            "{0} is not an image archive, since it is not a tar ({1})".format(path, error), MAKE
        ) from None
    except OSError as error:
        if error.filename != path and error.errno not in (errno.EIO, errno.EISDIR, errno.ESTALE):
            raise  # not about this file
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise ArchiveMissing("{0} does not exist".format(path)) from None
        reason = os.strerror(error.errno or 0)
        remedy = "let this user read it" if isinstance(error, PermissionError) else ""
        raise ArchiveProblem("{0} cannot be read ({1})".format(path, reason), remedy) from None


# ---- contents


class _Members(NamedTuple):
    sizes: dict[str, int]
    documents: dict[str, bytes]
    end: int


def _read_members(stream: Any, path: str, seekable: bool) -> _Members:
    """Return the sizes of all members and the contents of the small JSON ones."""
    sizes: dict[str, int] = {}
    documents: dict[str, bytes] = {}
    total = 0
    with tarfile.open(fileobj=stream, mode="r:" if seekable else "r|", bufsize=CHUNK) as archive:
        for member in archive:
            name = os.path.normpath(member.name)
            sizes[name] = member.size
            if not (member.isreg() and member.size <= _JSON_MAX and _may_be_json(name)):
                continue
            source = archive.extractfile(member)
            content = source.read() if source is not None else b""
            if content.lstrip()[:1] in (b"{", b"["):
                documents[name] = content
                total += len(content)
                if total > _JSON_TOTAL:
                    raise ArchiveProblem(
                        "{0} is not an image archive, since it has too many JSON files".format(path), MAKE
                    )
        end = archive.offset
        if seekable:
            # tarfile takes a damaged header for the end; a real end is a block of zeros.
            stream.seek(end)
            block = stream.read(tarfile.BLOCKSIZE)
            if block and block != bytes(tarfile.BLOCKSIZE):
                raise EOFError
    return _Members(sizes, documents, end)


def _may_be_json(name: str) -> bool:
    return name.startswith("blobs/sha256/") or ("/" not in name and name.endswith(".json"))


def _images(members: _Members, path: str) -> list[Image]:
    oci = list(_oci_images(members, path)) if "index.json" in members.documents else []
    if "manifest.json" in members.documents:
        ids = {image.ids[0]: image.ids for image in oci}
        images = [
            image._replace(ids=ids.get(image.ids[0], image.ids)) for image in _classic_images(members, path)
        ]
    else:
        images = oci
    if not images:
        raise ArchiveProblem(
            "{0} is not an image archive, since no manifest.json or index.json names an image".format(path),
            MAKE,
        )
    for image in images:
        for layer in image.layer_paths:
            if layer not in members.sizes:
                raise ArchiveProblem(
                    "{0} is incomplete, since layer {1} is missing in it".format(path, layer), AGAIN
                )
    return images


def _classic_images(members: _Members, path: str) -> Iterator[Image]:
    for entry in _document(members, "manifest.json", path):
        with _well_formed(path, "manifest.json"):
            config = os.path.normpath(entry["Config"])
            layers = [os.path.normpath(layer) for layer in entry.get("Layers") or []]
            tags = [short_name(tag) for tag in entry.get("RepoTags") or []]
        yield _image(members, path, config, layers, tags, [])


def _oci_images(members: _Members, path: str) -> Iterator[Image]:
    """Yield the images of an OCI layout that are really in it, each once per tag set."""
    pending: List[Tuple[Json, List[str], List[str]]] = []
    with _well_formed(path, "index.json"):
        for entry in _document(members, "index.json", path)["manifests"]:
            pending.append((entry, _oci_tags(entry.get("annotations") or {}), []))
    found: dict[str, Image] = {}
    while pending:
        descriptor, tags, parents = pending.pop(0)
        with _well_formed(path, "index.json"):
            blob = _blob(descriptor["digest"])
            ids = [descriptor["digest"], *parents]
            if blob not in members.sizes or "vnd.docker.reference.type" in (
                descriptor.get("annotations") or {}
            ):
                continue  # of a platform that was left out, or an attestation
            manifest = _document(members, blob, path)
            if "manifests" in manifest:
                pending[:0] = [(entry, tags, ids) for entry in manifest["manifests"]]
                continue
            config = _blob(manifest["config"]["digest"])
            layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
        if config in found:
            known = found[config]
            found[config] = known._replace(tags=known.tags + [tag for tag in tags if tag not in known.tags])
            continue
        found[config] = _image(members, path, config, layers, tags, ids)
    return iter(found.values())


def _oci_tags(annotations: Json) -> list[str]:
    """Return the full name that an OCI layout gives an image; a mere tag ("latest") is none."""
    for key in ("io.containerd.image.name", "org.opencontainers.image.ref.name"):
        name = annotations.get(key, "")
        if ":" in name or "/" in name:
            with contextlib.suppress(ArchiveProblem):
                return [short_name(name)]
    return []


def _image(
    members: _Members, path: str, config_path: str, layers: list[str], tags: list[str], ids: list[str]
) -> Image:
    config = _document(members, config_path, path)
    with _well_formed(path, config_path):
        return Image(
            ids=["sha256:" + hashlib.sha256(members.documents[config_path]).hexdigest(), *ids],
            diff_ids=list(config["rootfs"].get("diff_ids") or []),
            tags=tags,
            architecture=config.get("architecture") or "",
            traits=traits(config.get("created") or "", config.get("config")),
            config_path=config_path,
            layer_paths=layers,
            layer_sizes=[members.sizes.get(layer, 0) for layer in layers],
        )


def _document(members: _Members, name: str, path: str) -> Any:
    """Return a JSON member, its content checked against the digest in its name."""
    content = members.documents.get(name)
    if content is None:
        raise ArchiveProblem("{0} is incomplete, since {1} is missing in it".format(path, name), AGAIN)
    digest = os.path.basename(name).partition(".")[0]
    if re.fullmatch("[0-9a-f]{64}", digest) and hashlib.sha256(content).hexdigest() != digest:
        raise ArchiveProblem("{0} is corrupt, since {1} does not match its digest".format(path, name), AGAIN)
    with _well_formed(path, name):
        return json.loads(content)


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


@contextlib.contextmanager
def _well_formed(path: str, name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveProblem(
            "{0} is not an image archive, since {1} in it is malformed ({2})".format(path, name, error), MAKE
        ) from None


def _classic_manifest(index: ArchiveIndex) -> bytes:
    """Return the end of a tar: a manifest.json for the images of an OCI layout."""
    entries: Iterable[Json] = (
        {"Config": image.config_path, "RepoTags": image.tags, "Layers": image.layer_paths}
        for image in index.images
    )
    content = json.dumps(list(entries)).encode()
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        member.mode = 0o644
        archive.addfile(member, io.BytesIO(content))
    return output.getvalue()
