"""The README.md of a model on the Hub: what it is, its figures, how to load it.

The block between --- is the Hub's metadata, in YAML, of which JSON is a part.
"""

import datetime
import importlib
import json
import math
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from txl_jax.convert.weights import Weights
from txl_jax.experiment import sections
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError, first_line
from txl_jax.report import collect

_UNITS = {'bpc': 'bits per character', 'ppl': 'perplexity'}
_SIZES = 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff', 'd_embed', 'mem_len'


class Figure(NamedTuple):
  """A figure that was measured of a run."""

  corpus: str
  split: str
  unit: str  # a key of _UNITS
  value: float
  step: int | None
  how: str


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
  trained, figures = '', []
  if run:
    try:
      found = collect.read(run, title)
      for problem in found.damaged:
        print(f'warning: the card leaves out: {problem}', file=sys.stderr)
      trained = _trained(found) if found.records else ''
      figures = [*_figures(found, weights.step)]
    except (UserError, *files.ODD) as e:  # weights are good without
      why = f'{type(e).__name__}: {first_line(e)}'
      print(f'warning: the card has no figures: {run}: {why}', file=sys.stderr)
  parts = [
    _metadata(title, theirs, figures),
    f'# {title}',
    _what(weights),
    trained,
    _table(figures),
    f'## Use it\n\n{_use(name, title, theirs)}',
    f'Weights: {weights.origin}.' if weights.origin else '',
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


def _metadata(title: str, theirs: bool, figures: Sequence[Figure]) -> str:
  fields: dict[str, Any] = {
    'library_name': 'transformers' if theirs else 'txl_jax',
    'pipeline_tag': 'text-generation',
    'tags': ['transformer-xl', 'txl_jax', 'jax'],
  }
  if figures:
    results = [
      {
        'task': {'type': 'text-generation'},
        'dataset': {'name': f.corpus, 'type': f.corpus, 'split': f.split},
        'metrics': [{'type': _UNITS[f.unit], 'value': f.value}],
      }
      for f in figures
    ]
    fields['model-index'] = [{'name': title, 'results': results}]
  lines = (f'{k}: {json.dumps(x)}' for k, x in fields.items())
  return '\n'.join(['---', *lines, '---'])


def _what(weights: Weights) -> str:
  """The model in a sentence and its sizes."""
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(weights.params))
  V, kind = len(weights.vocabulary), weights.vocabulary.kind
  sizes = ', '.join(
    f'{k} {weights.fields[k]}' for k in _SIZES if weights.fields.get(k)
  )
  named = settings.keys(type(weights.section))['name'].choices
  return (
    f'{named[weights.section.name]}, {count:,} parameters ({sizes}), a '
    f'vocabulary of {V:,} {kind}.'
  )


def _figures(run: collect.Run, step: int | None):
  """What training and --mode=eval have measured of a step."""
  trained_on = run.config.get('data.corpus', '')
  if run.best and run.best['step'] == step:
    best = run.unit, run.best[run.unit], step
    yield Figure(trained_on, 'validation', *best, 'while it was trained')
  for name, found in run.analyses.items():
    if name.startswith('eval_') and found.get('checkpoint_step') == step:
      unit = found.get('unit')
      if unit not in _UNITS or not math.isfinite(found[unit]):
        continue
      lengths = found['eval']['segment_len'], found['config']['model.mem_len']
      how = 'by --mode=eval, T {}, M {}'.format(*lengths)
      corpus = found['corpus'].partition('-')[0]  # the rest names a text
      yield Figure(corpus, found['split'], unit, found[unit], step, how)


def _table(figures: Sequence[Figure]) -> str:
  if not figures:
    return ''
  rows = (
    f'| {f.corpus} | {f.split} | {f.value:.4g} {_UNITS[f.unit]} | {f.step} | '
    f'{f.how} |'
    for f in figures
  )
  head = (
    '| corpus | split | figure | step | measured |',
    '|---|---|---|---|---|',
  )
  return '\n'.join(['## Figures', '', *head, *rows])


def _trained(run: collect.Run) -> str:
  """The command that makes the run, and when it was made."""
  last = max(r['time'] for r in run.records)
  day = datetime.datetime.fromtimestamp(last, datetime.UTC)
  made = f'{run.step:,} steps until {day:%Y-%m-%d}'
  if run.config.get('origin'):
    made += ', beginning with other weights, which it does not name'
  return f'## Trained\n\n{made}:\n\n```sh\n{_command(run.config)}\n```'


def _command(config: Mapping[str, Any]) -> str:
  """A command with the values of a flat config; paths are '…' in it."""
  experiment = config.get('experiment', '').rstrip('+')
  file, _, variant = experiment.partition(':')
  try:
    module = importlib.import_module(f'txl_jax.configs.{file}')
    like = sections.read(module.get_config(*([variant] if variant else [])))
  except (ImportError, UserError, TypeError):  # a file of the user's own
    experiment = f'common:{config["model.name"]}'
    like = sections.defaults(config['model.name'])
  known, entries = settings.flatten(like), settings.all_keys(like)
  own = {k for k, entry in entries.items() if entry.is_path or '.prompt' in k}
  changed = [
    shlex.quote(f'--config.{k}={"…" if k in own else x}')
    for k, x in config.items()
    if k in known and k not in ('experiment', 'origin') and x != known[k]
  ]
  words = [f'python -m txl_jax.main --config={experiment}', *changed]
  return ' \\\n  '.join(words)


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
from transformers import TransfoXLLMHeadModel, TransfoXLTokenizer

model = TransfoXLLMHeadModel.from_pretrained({where.removeprefix('hf://')!r})
# Where there is a vocab.txt:
tokenizer = TransfoXLTokenizer.from_pretrained({where.removeprefix('hf://')!r})
```"""
