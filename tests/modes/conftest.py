"""The runs that the evaluation programs measure."""

from tests.modes.subjects import corpus, folder, plain, without_matplotlib

__all__ = ['corpus', 'folder', 'plain', 'without_matplotlib']
