"""Embedding providers: one module for each, chosen by settings, behind one port.

The embed stage, search and `docgrid doctor` call `build_provider`. A provider that is added gets a module, a
branch in `build_provider` and its name in `EmbeddingSettings.provider`.
"""

from docgrid_core.errors import SettingsError
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import EmbeddingSettings
from docgrid_core.vectors import Vectors
from docgrid_pipeline.embeddings.provider import EmbeddingProvider, Purpose

__all__ = ["EmbeddingProvider", "Purpose", "Vectors", "build_provider"]


def build_provider(settings: EmbeddingSettings, model: EmbeddingModel) -> EmbeddingProvider:
    """Return the provider for `model`; the caller closes it. Opens no connection yet.

    Raises `SettingsError` when the settings name another provider than the model's.
    """
    if model.provider != settings.provider:
        raise SettingsError(
            f"DOCGRID_EMBEDDING_PROVIDER={settings.provider}: the model {model.name} needs {model.provider}"
        )
    if settings.provider == "builtin":
        from docgrid_pipeline.embeddings.builtin import BuiltinProvider

        return BuiltinProvider(model)
    from docgrid_pipeline.embeddings.openai import OpenAIProvider

    return OpenAIProvider(settings, model)
