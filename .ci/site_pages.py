"""Makes pages of what lies outside of docs/; a hook of mkdocs.

The first page is README.md. A link out of docs/, to a config or an example,
becomes the name of that file: the site has no copy of it.
"""

import pathlib
import re

from mkdocs.structure.files import File

_ROOT = pathlib.Path(__file__).parents[1]


def on_files(files, config):
  """Adds README.md as the page index.md."""
  text = (_ROOT / 'README.md').read_text()
  text = re.sub(r'\]\((?!https?:|docs/|#)', '](../', text)
  text = text.replace('](docs/', '](')
  files.append(File.generated(config, 'index.md', content=text))
  return files


def on_page_markdown(markdown, **_):
  """Links to ../FILE become `FILE`."""
  return re.sub(r'\[([^\]]*)\]\(\.\./([^)#]*)[^)]*\)', _named, markdown)


def _named(link):
  text, file = link.groups()
  return f'`{file}`' if text.strip('`') in file else f'{text} (`{file}`)'
