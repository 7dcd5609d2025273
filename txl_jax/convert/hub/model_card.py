"""The README.md of a model on the Hub: what it is, its figures, how to load it.

The block between --- is the Hub's metadata, in YAML.
"""

import math
import pathlib
import shlex
import sys
from collections.abc import Iterator

import jax

from txl_jax.convert.weights import Weights
from txl_jax.program import files
from txl_jax.program.errors import UserError, first_line
from txl_jax.report import collect

_UNITS = {'bpc': 'bits per character', 'ppl': 'perplexity'}
_SIZES = 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff', 'd_embed', 'mem_len'
_METADATA = """---
library_name: {}
pipeline_tag: text-generation
tags: [transformer-xl, txl_jax, jax]
---"""
_HEAD = (
  '| corpus | split | figure | step | measured |',
  '|---|---|---|---|---|',
)


def card(
  weights: Weights, name: str, theirs: bool, run: pathlib.Path | None
) -> str:
  """The text of README.md.

  Args:
    weights: the model.
    name: hf://ORG/NAME, or the folder that it is written to.
    theirs: whether the files are those of Hugging Face's TransfoXL.
    run: the folder of the run that the weights are of, if there is one.
  """
  title = ' '.join(name.rstrip('/').rpartition('/')[2].split())
  figures = []
  if run:
    try:
      figures = [*_figures(collect.read(run, title), weights.step)]
    except (UserError, *files.ODD) as e:  # weights are good without
      why = f'{type(e).__name__}: {first_line(e)}'
      print(f'warning: the card has no figures: {run}: {why}', file=sys.stderr)
  parts = [
    _METADATA.format('transformers' if theirs else 'txl_jax'),
    f'# {title}',
    _what(weights),
    '\n'.join(['## Figures', '', *_HEAD, *figures]) if figures else '',
    f'## Use it\n\n{_use(name, title, theirs)}',
    f'Weights: {weights.origin}.' if weights.origin else '',
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


def _what(weights: Weights) -> str:
  """The model in a sentence and its sizes."""
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(weights.params))
  V, kind = len(weights.vocabulary), weights.vocabulary.kind
  sizes = ', '.join(
    f'{k} {weights.fields[k]}' for k in _SIZES if weights.fields.get(k)
  )
  return (
    f'Model `{weights.fields["name"]}`, {count:,} parameters ({sizes}), a '
    f'vocabulary of {V:,} {kind}.'
  )


def _figures(run: collect.Run, step: int | None) -> Iterator[str]:
  """Rows of what training and --mode=eval have measured of a step."""
  start = f'| {run.config.get("data.corpus", "")} |'
  if run.best is not None and run.best_step == step:
    figure = f'{run.best:.4g} {_UNITS[run.unit]}'
    yield f'{start} validation | {figure} | {step} | while it was trained |'
  for name, found in run.analyses.items():
    if name.startswith('eval_') and found.get('checkpoint_step') == step:
      unit = found.get('unit')
      if unit not in _UNITS or not math.isfinite(found[unit]):
        continue
      figure = f'{found[unit]:.4g} {_UNITS[unit]}'
      T, M = found['eval']['segment_len'], found['config']['model.mem_len']
      how = f'by --mode=eval, T {T}, M {M}'
      yield f'{start} {found["split"]} | {figure} | {step} | {how} |'


def _use(name: str, title: str, theirs: bool) -> str:
  where = name if name.startswith('hf://') else title
  ours = f"""With txl_jax, Transformer-XL in JAX:

```python
import txl_jax

run = txl_jax.load({where!r})
print(run.generate('The ', max_new_tokens=100))
print(run.score('A memory is read by the next segment.').nll.mean())
```

or, to evaluate and train it further, as a run:

```sh
txl-jax convert --from={shlex.quote(where)} --to=runs/{shlex.quote(title)}
```"""
  if not theirs:
    return ours
  return f"""{ours}

With transformers 4.35.2 (version 5 has no Transformer-XL):

```python
from transformers import TransfoXLLMHeadModel

model = TransfoXLLMHeadModel.from_pretrained({where.removeprefix('hf://')!r})
```"""
