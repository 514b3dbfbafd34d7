"""Alembic's entry point: runs the migrations on the connection that `migrate` opened."""

from alembic import context

from docgrid_core.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
