r"""Runs txl_jax on the GPUs or TPUs of a Kubernetes cluster.

python launch/kubernetes_job.py start --name=e24 --image=REGISTRY/txl_jax:cuda \
  --claim=shared --nodes=4 --gpus=8 -- \
  --config=enwik8_24l --workdir=/shared/runs/e24 \
  --config.model.dtype=bfloat16 --config.mesh.slices=4
python launch/kubernetes_job.py start --name=lm1b --image=REGISTRY/txl_jax:tpu \
  --claim=shared --tpu=tpu-v6e-slice --topology=16x16 --slices=2 -- \
  --config=lm1b_large --workdir=/shared/runs/lm1b

start creates a Job of GPU pods, or a JobSet of TPU pods on GKE, which restarts
pods that fail or are preempted; resume deletes it first and continues the run;
logs, status and delete need --name, and for TPUs --tpu. The claim is a
PersistentVolumeClaim that all pods may write (ReadWriteMany); it is mounted as
/shared, and --workdir must be in it. With --workdir=gs://BUCKET/NAME none is
needed: --account is then the service account that may write the bucket. Needs
only kubectl and Python; launch/kubernetes/Dockerfile builds the image.
"""

import json
import pathlib
import re
import shlex
import string
import subprocess
import sys

import command_line

_MANIFESTS = pathlib.Path(__file__).resolve().parent / 'kubernetes'
_ACTIONS = ('start', 'resume', 'logs', 'status', 'delete')
_PORT = 8476  # of the coordinator, in pods that share no host
_RETRIES = 20  # restarts of all pods


def _parse(argv):
  """(options, flags of txl_jax.main); ends the program if invalid."""
  parser = command_line.Parser(__doc__)
  add = parser.add_argument
  add('action', choices=_ACTIONS)
  add('--name', required=True, help='name of the job')
  add('--namespace', default='default', help='default: default')
  add('--image', default='', help='image with the repository installed')
  add('--claim', default='', help='PersistentVolumeClaim that the pods share')
  add('--account', default='default', help='service account of the pods')
  add('--nodes', type=int, default=0, help='GPU: pods, one for each node')
  add('--gpus', type=int, default=0, help='GPUs of each node')
  add('--tpu', default='', help='TPU: GKE type, e.g. tpu-v6e-slice')
  add('--topology', default='', help='TPU: chips of a slice, e.g. 4x8')
  add('--chips', type=int, default=4, help='TPU: chips per host; default: 4')
  add('--slices', type=int, default=1, help='TPU: node pools; default: 1')
  add(
    '--select',
    action='append',
    default=[],
    metavar='LABEL=VALUE',
    help='a label that the nodes must have; may be repeated',
  )
  add(
    '--env',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='an environment variable; may be repeated',
  )
  add('--pod', type=int, default=0, help='logs: pod index; default: 0')
  add('--slice', type=int, default=0, help='logs: slice index; default: 0')
  options, flags = parser.parse(argv)
  # It becomes part of host names.
  form = 'up to 40 of a-z, 0-9 and -, a letter first'
  if not re.fullmatch('[a-z]([-a-z0-9]{0,38}[a-z0-9])?', options.name):
    parser.refuse('name', options.name, form)
  for name in ('select', 'env'):
    for pair in getattr(options, name):
      if '=' not in pair[1:]:
        parser.refuse(name, pair, 'a name, = and a value')
  if options.action in ('start', 'resume'):
    _check_start(parser, options, flags)
  elif flags:
    parser.error(f'argument {flags[0]!r} is not expected after --')
  return options, flags


def _check_start(parser, options, flags):
  """Checks the options and flags of start and resume."""
  if bool(options.nodes or options.gpus) == bool(options.tpu):
    parser.error('give either --nodes and --gpus or --tpu and --topology')
  given = dict(f.split('=', 1) for f in flags if '=' in f)
  workdir = given.get('--workdir', '')
  in_bucket = re.match('gs://[^/]+/.', workdir)
  if not options.image:
    parser.error('--image is missing')
  if not options.claim and not in_bucket:
    parser.error('--claim is missing')
  if not options.tpu:
    parser.positive(options, 'nodes', 'gpus')
  else:
    parser.positive(options, 'chips', 'slices')
    if not re.fullmatch('[1-9][0-9]*(x[1-9][0-9]*){1,2}', options.topology):
      parser.refuse('topology', options.topology, 'e.g. 4x8, 4x4x8')
    if _chips(options) % options.chips:
      parser.error(
        f'--topology={options.topology} has {_chips(options)} chips; allowed: '
        f'a multiple of --chips={options.chips}'
      )
  if '--config' not in given:
    parser.error("--config is missing: give txl_jax's flags last, after --")
  if not in_bucket and not workdir.startswith('/shared/'):
    allowed = 'a folder in /shared/, or gs://BUCKET/NAME'
    parser.error(f'--workdir={workdir}; allowed after --: {allowed}')


def _chips(options):
  """Chips of a slice."""
  n = 1
  for side in options.topology.split('x'):
    n *= int(side)
  return n


def _literal(text):
  """Kubernetes reads $(NAME) as a variable and $$ as a dollar sign."""
  return text.replace('$', '$$')


def manifest(options, flags):
  """The YAML of a run.

  Values are written as JSON, which is valid YAML.
  """
  selector = dict(pair.split('=', 1) for pair in options.select)
  args = [_literal(flag) for flag in flags]
  if options.tpu:
    platform = 'tpu'
    pods, devices = _chips(options) // options.chips, options.chips
    retries = _RETRIES
    selector['cloud.google.com/gke-tpu-accelerator'] = options.tpu
    selector['cloud.google.com/gke-tpu-topology'] = options.topology
    if options.slices > 1:
      args.append(f'--config.mesh.slices={options.slices}')
  else:
    platform = 'gpu'
    pods, devices = options.nodes, options.gpus
    retries = _RETRIES * pods  # each pod that ends counts
    # JAX could ask the cluster for these, but only with rights to read it.
    args += [
      f'--coordinator={options.name}-0.{options.name}:{_PORT}',
      f'--num_processes={pods}',
      '--process_id=$(JOB_COMPLETION_INDEX)',
    ]
  env = [pair.split('=', 1) for pair in options.env]
  mounts, volumes = _storage(options)
  values = {
    'name': options.name,
    'image': options.image,
    'account': options.account,
    'mounts': mounts,
    'volumes': volumes,
    'pods': pods,
    'slices': options.slices,
    'devices': devices,
    'retries': retries,
    'selector': selector,
    'command': [
      'launch/with_flags.sh',
      platform,
      'python',
      '-m',
      'txl_jax.main',
    ],
    'args': args,
    'env': [{'name': k, 'value': _literal(v)} for k, v in env],
  }
  text = (_MANIFESTS / f'{platform}.yaml').read_text()
  return string.Template(text).substitute(
    {k: json.dumps(v) for k, v in values.items()}
  )


def _storage(options):
  """Mounts of a container, and the volumes of its pod."""
  mounts, volumes = [], []
  if options.claim:
    mounts.append({'name': 'shared', 'mountPath': '/shared'})
    claim = {'claimName': options.claim}
    volumes.append({'name': 'shared', 'persistentVolumeClaim': claim})
  if not options.tpu:  # NCCL passes data between processes through it
    mounts.append({'name': 'memory', 'mountPath': '/dev/shm'})
    volumes.append({'name': 'memory', 'emptyDir': {'medium': 'Memory'}})
  return mounts, volumes


def steps(options, flags):
  """Commands to run, as [(command, standard input or None)]."""
  name = options.name
  if options.tpu:
    objects = [f'jobset/{name}']
    pods = f'--selector=jobset.sigs.k8s.io/jobset-name={name}'
    pod = f'{pods},jobset.sigs.k8s.io/job-index={options.slice}'
  else:
    objects = [f'job/{name}', f'service/{name}']
    pods = pod = f'--selector=job-name={name}'
  pod += f',batch.kubernetes.io/job-completion-index={options.pod}'
  kubectl = ['kubectl', f'--namespace={options.namespace}']
  if options.action == 'status':
    return [([*kubectl, 'get', *x], None) for x in (objects, ['pods', pods])]
  if options.action == 'logs':
    return [([*kubectl, 'logs', '--follow', '--tail=100', pod], None)]
  # foreground: it waits for the pods, which may be writing a checkpoint.
  delete = [*kubectl, 'delete', '--ignore-not-found', '--cascade=foreground']
  deleted = ([*delete, *objects], None)
  if options.action == 'delete':
    return [deleted]
  apply = ([*kubectl, 'apply', '--filename=-'], manifest(options, flags))
  return [apply] if options.action == 'start' else [deleted, apply]


def main(argv):
  """Runs the action of a command line; returns the status."""
  options, flags = _parse(argv)
  todo = steps(options, flags)
  if options.dry_run:
    # Commands before YAML are comments, so the output is still YAML.
    comment = '# ' if any(text for _, text in todo) else ''
    for command, text in todo:
      print(f'{comment}{shlex.join(command)}')
      print(text or '', end='')
    return 0
  for command, text in todo:
    try:
      done = subprocess.run(command, input=text, text=True, check=False)
    except OSError as e:
      return command_line.cannot_start(command, e)
    if done.returncode:
      return done.returncode
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
