"""How to reach the servers of a local stack: written by `up`, read by every command told nothing else.

The file holds passwords, so only its owner may read it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.home import home_folder, write_private
from docgrid_cli.local.ports import LOOPBACK

BUCKET = "docgrid"


@dataclass(frozen=True)
class Profile:
    """Addresses and credentials of one local stack; kept from one `up` to the next while ports are free."""

    database_url: str
    postgres_port: int
    s3_port: int
    s3_access_key: str
    s3_secret_key: str
    model_port: int

    def __repr__(self) -> str:
        ports = f"postgres_port={self.postgres_port}, s3_port={self.s3_port}, model_port={self.model_port}"
        return f"Profile({ports})"

    def settings(self) -> dict[str, str]:
        """Return the `DOCGRID_…` settings that lead to this stack."""
        return {
            "DOCGRID_DATABASE_URL": self.database_url,
            "DOCGRID_STORAGE_ENDPOINT": f"{LOOPBACK}:{self.s3_port}",
            "DOCGRID_STORAGE_SECURE": "false",
            "DOCGRID_STORAGE_ACCESS_KEY": self.s3_access_key,
            "DOCGRID_STORAGE_SECRET_KEY": self.s3_secret_key,
            "DOCGRID_STORAGE_BUCKET": BUCKET,
            "DOCGRID_EMBEDDING_PROVIDER": "openai",
            "DOCGRID_EMBEDDING_BASE_URL": f"http://{LOOPBACK}:{self.model_port}",
            # The model server works on one request at a time, at a few chunks a second: small requests, one from
            # each process, so that a search soon has its turn, and the patience to wait in that line.
            "DOCGRID_EMBEDDING_BATCH_SIZE": "4",
            "DOCGRID_EMBEDDING_CONCURRENCY": "1",
            "DOCGRID_EMBEDDING_READ_TIMEOUT": "5m",
        }


def load(home: Path | None = None) -> dict[str, str]:
    """Return the settings of the local stack in `home` (the user's, by default); empty before its first `up`.

    Commands use them when `DOCGRID_DATABASE_URL` is not set.
    """
    profile = read(home or home_folder())
    return profile.settings() if profile else {}


def read(home: Path) -> Profile | None:
    """Return the profile of the stack in `home`, or None before its first `up`."""
    path = _path(home)
    try:
        return Profile(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalStackError(f"can not read {path}: {error.strerror}") from error
    except (ValueError, TypeError):
        raise LocalStackError(f"{path} is damaged: delete it and run `docgrid up` again") from None


def write(home: Path, profile: Profile) -> None:
    """Save the profile for the commands in other terminals and for the next `up`."""
    try:
        write_private(_path(home), json.dumps(asdict(profile), indent=2))
    except OSError as error:
        raise LocalStackError(f"can not write {_path(home)}: {error.strerror}") from error


def _path(home: Path) -> Path:
    return home / "profile.json"
