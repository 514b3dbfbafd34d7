"""Keys and certificates of one control plane, made by openssl: they live as long as its folder.

Elliptic curves, because an RSA key costs a second on a busy machine.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.cluster.errors import ClusterUnavailable
from support.cluster.network import GATEWAY

# Of our own, so that the machine's settings of openssl play no part; everything else is said on the command line.
_CONFIGURATION = "[req]\ndistinguished_name=name\n[name]\n"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_KEY_IDS = ("subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid")
_NAMES = (
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
    f"IP:127.0.0.1,IP:10.96.0.1,IP:{GATEWAY}"
)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    server: Path
    server_key: Path
    account_key: Path
    """signs the tokens of ServiceAccounts"""
    client: Path
    """by which the apiserver is known to kubelets"""
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, the apiserver's certificate by it, and the key for ServiceAccounts' tokens."""
    made = Certificates(
        authority=folder / "ca.crt",
        server=folder / "apiserver.crt",
        server_key=folder / "apiserver.key",
        account_key=folder / "accounts.key",
        client=folder / "kubelet-client.crt",
        client_key=folder / "kubelet-client.key",
    )
    authority_key = folder / "ca.key"
    (folder / "openssl.cnf").write_text(_CONFIGURATION)
    authority = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign", _KEY_IDS[0])
    _request(made.authority, authority_key, "/CN=docgrid-tests", extensions=authority)
    signer = ("-CA", str(made.authority), "-CAkey", str(authority_key))
    leaf = ("basicConstraints=critical,CA:FALSE", *_KEY_IDS)
    names = (*leaf, f"subjectAltName={_NAMES}")
    _request(made.server, made.server_key, "/CN=kube-apiserver", *signer, extensions=names)
    purpose = (*leaf, "extendedKeyUsage=clientAuth")
    subject = "/O=system:masters/CN=kube-apiserver"
    _request(made.client, made.client_key, subject, *signer, extensions=purpose)
    _openssl(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(made.account_key)])
    return made


def _request(certificate: Path, key: Path, subject: str, *signer: str, extensions: Sequence[str]) -> None:
    files = [
        "-keyout",
        str(key),
        "-out",
        str(certificate),
        "-config",
        str(certificate.parent / "openssl.cnf"),
    ]
    extended = [part for extension in extensions for part in ("-addext", extension)]
    _openssl(["req", "-x509", *_CURVE, *files, "-subj", subject, "-days", "30", *signer, *extended])


def _openssl(arguments: Sequence[str]) -> None:
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ClusterUnavailable(
            "no control plane: openssl, which makes its certificates, is missing"
        ) from error
    if done.returncode != 0:
        raise ClusterUnavailable(
            f"openssl can not make the control plane's certificates: {done.stderr.strip()}"
        )
