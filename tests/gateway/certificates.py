"""Certificates for tests: an authority, and servers' certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_LIFE = datetime.timedelta(days=1)


class Authority:
    """A certificate authority of its own."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = _builder(self._name, self._name, self._key).add_extension(constraints, critical=True)
        builder = builder.add_extension(usage, critical=True).add_extension(self._identifier, critical=False)
        self.pem = _pem(builder.sign(self._key, hashes.SHA256()))

    def write(self, folder: Path, *names: str) -> None:
        """Write `tls.crt` and `tls.key` for a server of these names, and `ca.crt`."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])
        alternatives = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names]
        )
        # Since Python 3.13 a client accepts no certificate without the identifier of its authority's key.
        authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        signed = _builder(subject, self._name, key).add_extension(alternatives, critical=False)
        signed = signed.add_extension(authority, critical=False)
        (folder / "tls.crt").write_bytes(_pem(signed.sign(self._key, hashes.SHA256())))
        private = serialization.PrivateFormat.PKCS8
        (folder / "tls.key").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
        )
        (folder / "ca.crt").write_bytes(self.pem)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now - _LIFE).not_valid_after(now + _LIFE)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
