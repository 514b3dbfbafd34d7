"""Create every table."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the first schema."""
    for statement in Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split(";\n"):
        if statement.strip():
            op.execute(statement)
