"""HTML of a scored text: tokens coloured by their nll, without scripts."""

import functools
import html
import math
from typing import Any

import numpy as np

# At 0 bits, at half of log2 V, and from log2 V on: the nll of a uniform guess.
_COLOURS = (255, 255, 255), (255, 214, 102), (232, 82, 74)
_STYLE = """<style>
.txl { max-width: 46em; padding: 1em 13em 8em 1em; color: #222;
  background: #fff; font: 15px/1.7 sans-serif }
.txl i { display: inline-block; width: 12em; height: .8em; margin: 0 .5em;
  border: 1px solid #bbb; background: linear-gradient(to right, SCALE) }
.txl pre { font: 15px/1.7 monospace; color: inherit; white-space: pre-wrap }
.txl span { position: relative } .txl span:hover { outline: 1px solid }
.txl span:hover::after { content: attr(data-top); position: absolute;
  z-index: 1; left: 0; top: 1.8em; padding: .4em .8em; border-radius: 4px;
  color: #fff; background: #222; font-size: 13px; white-space: pre }
</style>
""".replace('SCALE', ', '.join(f'rgb{x}' for x in _COLOURS))


def page(score: Any, title: str) -> str:
  """A whole HTML file with all tokens of a `results.Score`."""
  head = f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>{html.escape(title)}'
  return f'{head}</title>\n{part(score, title)}'


def part(score: Any, title: str, count: int | None = None) -> str:
  """HTML of the first `count` tokens of a `results.Score`, by default all.

  On hover, a token shows its nll and probability, and the most likely tokens.
  """
  vocabulary = score.vocabulary
  bits = score.nll[:count] / math.log(2)
  most = math.log2(len(vocabulary))
  edges = np.linspace(0, most, len(_COLOURS))
  rgb = [np.rint(np.interp(bits, edges, x)) for x in zip(*_COLOURS)]
  between = ' ' * (vocabulary.kind != 'bytes' and vocabulary.sizes is None)

  @functools.cache
  def name(i):  # escapes bytes that are not UTF-8, and invisible characters
    text = vocabulary.decode([i]).decode(errors='backslashreplace')
    seen = (x if x.isprintable() or x == '\n' else ascii(x)[1:-1] for x in text)
    return html.escape(''.join(seen) or '<eos>')

  def token(i, attributes=''):
    text = name(i).replace('\n', '↵\n')
    return f'<span{attributes}>{text}</span>' + between * (text[-1] != '\n')

  def row(i, logprob):
    shown = name(i).replace('\n', '↵').replace(' ', '␣')
    return f'\n{100 * math.exp(logprob):6.3g}%  {shown}'

  tokens = [*map(token, score.unscored)]
  colours = np.stack(rgb, axis=1).astype(np.uint8)
  columns = score.ids, bits, colours, score.top_ids, score.top_logprobs
  for i, x, colour, *top in zip(*columns):
    text = f'{x:.2f} bits, {100 * 2**-x:.3g}%{"".join(map(row, *top))}'
    style = f'background:#{colour.tobytes().hex()}'
    tokens.append(token(i, f' style="{style}" data-top="{text}"'))
  return (
    f'{_STYLE}<div class="txl"><strong>{html.escape(title)}</strong>\n'
    f'<br>0 <i></i> {most:.1f} bits or more, the nll of a uniform guess\n'
    f'<pre>{"".join(tokens)}{"…" * (len(bits) < len(score.nll))}</pre></div>\n'
  )
