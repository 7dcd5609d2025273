"""The model card (README.md) of a model on the Hub.

It describes the model, its training and results, and how to load it. The block
between --- is the Hub's metadata: YAML with JSON values.
"""

import datetime
import json
import math
import pathlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from txl_jax.convert.weights import Weights
from txl_jax.evaluation.units import NAMES
from txl_jax.experiment import collect
from txl_jax.program import files, markdown, settings
from txl_jax.program.errors import UserError, first_line

_SIZES = 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff', 'd_embed', 'mem_len'


class Result(NamedTuple):
  """An evaluation result of a run."""

  corpus: str
  split: str
  unit: str  # a key of NAMES
  value: float
  how: str


def card(
  weights: Weights,
  name: str,
  transformers: bool = False,
  run: pathlib.Path | None = None,
) -> str:
  """The text of README.md.

  `name` is hf://ORG/NAME or the destination folder, `transformers` is true if
  the files are for Hugging Face's TransfoXL, and `run` is the folder of the run
  with these weights, if any.
  """
  title = ' '.join(name.rstrip('/').rpartition('/')[2].split())
  training = ''
  results = []
  if run:
    try:
      found = collect.read(run, title)
      for error in found.damaged:
        print(f'warning: omitted from the model card: {error}', file=sys.stderr)
      training = _training(found) if found.records else ''
      results = [*_results(found, weights.step)]
    except (UserError, *files.ODD) as e:  # a card without results is valid
      reason = f'{run}: {type(e).__name__}: {first_line(e)}'
      print(f'warning: no results in the model card: {reason}', file=sys.stderr)
  parts = [
    _metadata(title, transformers, results),
    f'# {title}',
    _summary(weights),
    training,
    _table(results, weights.step),
    f'## Use it\n\n{_use(name, title, transformers)}',
    f'Weights: {weights.origin}.' if weights.origin else '',
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


def _metadata(title: str, transformers: bool, results: Sequence[Result]) -> str:
  fields: dict[str, Any] = {
    'library_name': 'transformers' if transformers else 'txl_jax',
    'pipeline_tag': 'text-generation',
    'tags': ['transformer-xl', 'txl_jax', 'jax'],
  }
  if results:
    entries = [
      {
        'task': {'type': 'text-generation'},
        'dataset': {'name': r.corpus, 'type': r.corpus, 'split': r.split},
        'metrics': [{'type': NAMES[r.unit], 'value': r.value}],
      }
      for r in results
    ]
    fields['model-index'] = [{'name': title, 'results': entries}]
  lines = (f'{k}: {json.dumps(x)}' for k, x in fields.items())
  return '\n'.join(['---', *lines, '---'])


def _summary(weights: Weights) -> str:
  """A sentence with the name and sizes of the model."""
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(weights.params))
  fields = weights.fields
  V = len(weights.vocabulary)
  title = settings.keys(weights.section)['name'].choices[fields['name']]
  sizes = ', '.join(f'{k} {fields[k]}' for k in _SIZES if fields.get(k))
  vocabulary = f'a vocabulary of {V:,} {weights.vocabulary.kind}'
  return f'{title}, {count:,} parameters ({sizes}), {vocabulary}.'


def _results(run: collect.Run, step: int | None) -> Iterator[Result]:
  """Results of training and --mode=eval at a step."""
  if run.best and run.best['step'] == step:
    corpus = run.config.get('data.corpus', '')
    value = run.best[run.unit]
    yield Result(corpus, 'validation', run.unit, value, 'during training')
  for name, found in run.analyses.items():
    if name.startswith('eval_') and found.get('checkpoint_step') == step:
      unit = found.get('unit')
      if unit not in NAMES or not math.isfinite(found[unit]):
        continue
      corpus = found['corpus'].partition('-')[0]  # the rest names a text
      how = f'by --mode=eval, T {found["eval"]["segment_len"]}'
      M = found['eval'].get('model', {}).get('mem_len')
      M = found['config'].get('model.mem_len') if M is None else M
      how += f', M {M}' if M else ''
      yield Result(corpus, found['split'], unit, found[unit], how)


def _table(results: Sequence[Result], step: int | None) -> str:
  rows = [
    [r.corpus, r.split, f'{r.value:.4g} {NAMES[r.unit]}', step, r.how]
    for r in results
  ]
  header = ['corpus', 'split', 'result', 'step', 'measured']
  return f'## Results\n\n{markdown.table(header, rows)}' if rows else ''


def _training(run: collect.Run) -> str:
  """The command of the run, its number of steps and its date."""
  last = max(r['time'] for r in run.records)
  day = datetime.datetime.fromtimestamp(last, datetime.UTC)
  steps = f'{run.step:,} steps until {day:%Y-%m-%d}'
  if run.config.get('origin'):
    steps += ', initialised from other weights (not part of the command)'
  return f'## Training\n\n{steps}:\n\n```sh\n{_command(run.config)}\n```'


def _command(config: Mapping[str, Any]) -> str:
  """The command for a flat config; paths and prompts become '…'."""
  experiment, like = collect.named_config(config)
  known = settings.flatten(like)
  entries = settings.all_keys(like)
  hidden = {k for k, x in entries.items() if x.is_path or '.prompt' in k}
  changed = [
    shlex.quote(f'--config.{k}={"…" if k in hidden else x}')
    for k, x in config.items()
    if k in known and k not in ('experiment', 'origin') and x != known[k]
  ]
  words = [f'python -m txl_jax.main --config={experiment}', *changed]
  return ' \\\n  '.join(words)


def _use(name: str, title: str, transformers: bool) -> str:
  where = name if name.startswith('hf://') else title
  ours = f"""With txl_jax, Transformer-XL in JAX:

```python
import txl_jax

run = txl_jax.load({where!r})
print(run.generate('The ', max_new_tokens=100))
print(run.score('A memory is read by the next segment.').nll.mean())
```

or, to evaluate it or train it further, as a run:

```sh
txl-jax convert --from={shlex.quote(where)} --to=runs/{shlex.quote(title)}
```"""
  if not transformers:
    return ours
  repository = where.removeprefix('hf://')
  return f"""{ours}

With transformers 4.35.2 (version 5 has no Transformer-XL):

```python
from transformers import TransfoXLLMHeadModel, TransfoXLTokenizer

model = TransfoXLLMHeadModel.from_pretrained({repository!r})
# Only if there is a vocab.txt:
tokenizer = TransfoXLTokenizer.from_pretrained({repository!r})
```"""
