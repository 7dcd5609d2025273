r"""Four-part chorales: train on Bach in minutes, and write one.

  pip install -e '.[music]'     # in a clone

  python music.py prepare       # Bach's chorales as token ids: chorales/
  txl-jax --config=music        # trains: runs/music
  python music.py write         # chorale.mid, chorale.png
  python music.py score         # nats per note of a chorale, real and shuffled

Each sixteenth has four tokens, soprano to bass: the MIDI pitch of a note that
starts, 128 + pitch of a held one, 0 for silence.

  python music.py prepare MY_SCORES

reads your own MusicXML or MIDI files with four parts.
"""

import argparse
import json
import pathlib

import numpy as np

HELD = 128  # added to the pitch of a held note
VOICES = 'soprano', 'alto', 'tenor', 'bass'
STEPS = 4  # per quarter note
BAR = len(VOICES) * 4 * STEPS  # tokens of a bar in 4/4 time
SCORES = '.mid', '.midi', '.musicxml', '.mxl', '.xml'
TRANSPOSED = range(-3, 4)  # semitones: each training piece in seven keys


def to_ids(parts) -> list[int]:
  """Token ids of a piece, voice by voice in each step.

  Args:
    parts: for each voice, a list of notes (pitch, start, end), in steps.
  """
  steps = max(end for notes in parts for _, _, end in notes)
  grid = np.zeros([steps, len(parts)], int)
  for voice, notes in enumerate(parts):
    for pitch, start, end in notes:
      grid[start:end, voice] = HELD + pitch
      grid[start, voice] = pitch
  return grid.ravel().tolist()


def to_parts(ids) -> list[list[tuple[int, int, int]]]:
  """The inverse of `to_ids`; a held pitch that was not sounding starts."""
  steps = len(ids) // len(VOICES)
  parts = []
  for column in np.reshape(ids[: steps * len(VOICES)], [steps, -1]).T:
    notes = []
    for step, token in enumerate(column.tolist()):
      pitch = token % HELD
      held = notes and notes[-1][0] == pitch and notes[-1][2] == step
      if token >= HELD and held:
        notes[-1] = (pitch, notes[-1][1], step + 1)
      elif pitch:
        notes.append((pitch, step, step + 1))
    parts.append(notes)
  return parts


def transpose(ids, semitones):
  """Transposes every note; silence stays."""
  ids = np.asarray(ids)
  return np.where(ids % HELD, ids + semitones, ids).tolist()


def read_score(path):
  """The ids of a MusicXML or MIDI file, or None without four parts."""
  import music21

  parts = music21.converter.parse(path).stripTies().parts
  if len(parts) != len(VOICES):
    return None
  found = []
  for part in parts:
    notes = []
    for note in part.flatten().notes:
      start = round(STEPS * note.offset)
      end = round(STEPS * (note.offset + note.quarterLength))
      if end > start and note.pitches:  # no ornament
        notes.append((max(p.midi for p in note.pitches), start, end))
    found.append(notes)
  return to_ids(found) if all(found) else None


def prepare(folder='', output='chorales'):
  """Writes train.jsonl, and a tenth each to valid.jsonl and test.jsonl."""
  import music21

  if folder:
    paths = (x for x in pathlib.Path(folder).rglob('*') if x.suffix in SCORES)
  else:
    paths = music21.corpus.getComposer('bach')
  pieces = [x for x in map(read_score, sorted(paths)) if x]
  if len(pieces) < 10:
    raise SystemExit(f'error: {len(pieces)} four-part pieces; 10 are needed')
  splits = {'train': [], 'valid': pieces[::10], 'test': pieces[5::10]}
  for i, piece in enumerate(pieces):
    if i % 10 not in (0, 5):
      splits['train'] += [transpose(piece, by) for by in TRANSPOSED]
  pathlib.Path(output).mkdir(exist_ok=True)
  for name, ids in splits.items():
    lines = ''.join(json.dumps({'ids': x}) + '\n' for x in ids)
    pathlib.Path(output, f'{name}.jsonl').write_text(lines)
    print(f'{name}: {len(ids)} pieces, {sum(map(len, ids)):,} tokens')


def piece_of(split, number=0, folder='chorales'):
  """The ids of one piece."""
  lines = pathlib.Path(folder, f'{split}.jsonl').read_text().splitlines()
  return json.loads(lines[number])['ids']


def save_midi(parts, path, quarters_per_minute=80):
  """Writes a MIDI file with one organ track per voice."""
  import mido

  file = mido.MidiFile(ticks_per_beat=120 * STEPS)
  for channel, (voice, notes) in enumerate(zip(VOICES, parts)):
    track = mido.MidiTrack([mido.MetaMessage('track_name', name=voice)])
    tempo = mido.bpm2tempo(quarters_per_minute)
    track.append(mido.MetaMessage('set_tempo', tempo=tempo))
    track.append(mido.Message('program_change', program=19, channel=channel))
    now = 0
    for pitch, *times in notes:
      for kind, time in zip(('note_on', 'note_off'), times):
        wait = 120 * (time - now)
        track.append(mido.Message(kind, note=pitch, channel=channel, time=wait))
        now = time
    file.tracks.append(track)
  file.save(path)


def save_picture(parts, path, given=0):
  """Draws a piano roll; a line marks the end of the prompt, in steps."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 3.4), layout='constrained')
  axes = figure.subplots()
  for voice, notes in zip(VOICES, parts):
    pitch, start, end = np.reshape(notes, [-1, 3]).T
    width = (end - start) / STEPS - 0.06
    axes.barh(pitch, width, 0.9, left=start / STEPS, label=voice)
  if given:
    axes.axvline(given / STEPS, color='grey', linestyle='--')
  axes.set(xlabel='quarter notes', ylabel='MIDI pitch')
  axes.legend(ncols=4, loc='lower center', bbox_to_anchor=(0.5, 1))
  figure.savefig(path, dpi=100)


def write(run, piece=2, bars=16, seed=1, temperature=1.0, output='chorale'):
  """Continues two bars of a test piece: the longest of eight samples."""
  prompt = piece_of('test', piece)[: 2 * BAR]
  options = dict(max_new_tokens=bars * BAR, temperature=temperature, seed=seed)
  new = max(run.generate([prompt], samples=8, **options), key=len)
  parts = to_parts([*prompt, *new])
  save_midi(parts, f'{output}.mid')
  save_picture(parts, f'{output}.png', given=2 * BAR // len(VOICES))
  print(f'{output}.mid, {output}.png: {len(new) / BAR:.1f} new bars')


def score(run, piece=2):
  """Prints nats per note of a piece, as written and shuffled."""
  ids = np.array(piece_of('test', piece))
  rng = np.random.default_rng(0)
  bars = ids[: len(ids) // BAR * BAR].reshape(-1, BAR)
  for name, order in (
    ('as written', ids),
    ('bars in another order', rng.permutation(bars).ravel()),
    ('notes in another order', rng.permutation(ids)),
  ):
    print(f'{run.score(order).nats:.3f} nats per note: {name}')


def main():
  """Runs one of the three commands."""
  parser = argparse.ArgumentParser(description='Four-part chorales.')
  parser.add_argument('command', choices=('prepare', 'write', 'score'))
  parser.add_argument('folder', nargs='?', default='', help='of your scores')
  parser.add_argument('--run', default='runs/music', help='a trained run')
  parser.add_argument('--piece', type=int, default=2, help='of the test split')
  parser.add_argument('--bars', type=int, default=16, help='at most')
  parser.add_argument('--seed', type=int, default=1)
  parser.add_argument('--temperature', type=float, default=1.0)
  given = parser.parse_args()
  if given.command == 'prepare':
    return prepare(given.folder)
  import txl_jax

  run = txl_jax.load(given.run)
  if given.command == 'score':
    return score(run, given.piece)
  return write(run, given.piece, given.bars, given.seed, given.temperature)


if __name__ == '__main__':
  main()
