# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenSSH's formats of an ed25519 key and of a host certificate (PROTOCOL.key, PROTOCOL.certkeys).

The library `cryptography` and ssh-keygen put a random number into both. Here the same keys give the same
files on every machine and in every run.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import textwrap

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY = b"ssh-ed25519"
_CERTIFICATE = b"ssh-ed25519-cert-v01@openssh.com"
_HOST = 2
_FOR_EVER = 2**64 - 1
_RAW = serialization.Encoding.Raw


def derived(secret: Ed25519PrivateKey, purpose: str) -> Ed25519PrivateKey:
    """Return the key derived from a secret key for a purpose; it reveals nothing about the secret key."""
    seed = secret.private_bytes(_RAW, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    return Ed25519PrivateKey.from_private_bytes(hmac.digest(seed, purpose.encode(), "sha256"))


def private_text(key: Ed25519PrivateKey, comment: str) -> str:
    """Return the text of a private key file."""
    public = _raw(key)
    seed = key.private_bytes(_RAW, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    check = hashlib.sha256(public).digest()[:4]  # any value, written twice
    secret = check * 2 + b"".join(map(_string, (_KEY, public, seed + public, comment.encode())))
    secret += bytes(range(1, 1 + -len(secret) % 8))
    text = b"openssh-key-v1\0" + b"".join(map(_string, (b"none", b"none", b""))) + _number(1, 4)
    body = base64.b64encode(text + _string(public_blob(key)) + _string(secret)).decode()
    name = "OPENSSH PRIVATE KEY"
    return "\n".join([f"-----BEGIN {name}-----", *textwrap.wrap(body, 70), f"-----END {name}-----", ""])


def public_blob(key: Ed25519PrivateKey) -> bytes:
    """Return a public key in ssh's wire format."""
    return _string(_KEY) + _string(_raw(key))


def public_line(key: Ed25519PrivateKey) -> str:
    """Return a public key as in authorized_keys and known_hosts."""
    return f"{_KEY.decode()} {base64.b64encode(public_blob(key)).decode()}"


def fingerprint(key: Ed25519PrivateKey) -> str:
    """Return the fingerprint of a key, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(public_blob(key)).digest()).decode().rstrip("=")


def host_certificate(
    key: Ed25519PrivateKey, authority: Ed25519PrivateKey, name: str, principals: list[str]
) -> str:
    """Return the line of a host certificate; its principals are the names and addresses of the host."""
    # The nonce keeps others from choosing the bytes that the authority signs.
    nonce = hashlib.sha256(_raw(derived(authority, f"nonce {name}"))).digest()
    signed = b"".join(
        [
            _string(_CERTIFICATE),
            _string(nonce),
            _string(_raw(key)),
            _number(0, 8),  # serial number, for revocation lists
            _number(_HOST, 4),
            _string(name.encode()),
            _string(b"".join(_string(one.encode()) for one in principals)),
            _number(0, 8),
            _number(_FOR_EVER, 8),
            _string(b""),  # critical options
            _string(b""),  # extensions
            _string(b""),  # reserved
            _string(public_blob(authority)),
        ]
    )
    signature = _string(_KEY) + _string(authority.sign(signed))
    return f"{_CERTIFICATE.decode()} {base64.b64encode(signed + _string(signature)).decode()}"


def _raw(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(_RAW, serialization.PublicFormat.Raw)


def _string(value: bytes) -> bytes:
    return _number(len(value), 4) + value


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")
