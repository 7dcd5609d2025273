"""kubernetes_job.py: the YAML and the calls of kubectl."""

import yaml

from tests.launch import launchers
from tests.launch.launchers import GPU, SHARED, TPU


def manifests(*arguments):
  """The objects that a start of Kubernetes makes."""
  done = launchers.call('job', *arguments)
  assert done.returncode == 0, done.stderr
  return list(yaml.safe_load_all(done.stdout))


def test_kubernetes_gpu():
  flags = ['--config=c.py', "--workdir=/shared/a b/it's", '--config.x="$(Y)\n']
  service, job = manifests(
    'start', *GPU, '--select=a/b=on', '--env=V=$x', '--dry_run', '--', *flags
  )
  assert (service['kind'], service['metadata']['name']) == ('Service', 'e')
  assert service['spec']['clusterIP'] == 'None'
  assert service['spec']['selector'] == {'job-name': 'e'}
  assert (job['kind'], job['metadata']['name']) == ('Job', 'e')
  spec = job['spec']
  assert spec['completionMode'] == 'Indexed'
  assert spec['completions'] == spec['parallelism'] == 2
  template = spec['template']['spec']
  assert template['subdomain'] == 'e'
  assert template['nodeSelector'] == {'a/b': 'on'}
  [container] = template['containers']
  assert container['image'] == 'i'
  command = 'launch/with_flags.sh gpu python -m txl_jax.main'
  assert container['command'] == command.split()
  # Kubernetes makes one dollar sign of two.
  assert container['args'] == [
    *flags[:2],
    '--config.x="$$(Y)\n',
    '--coordinator=e-0.e:8476',
    '--num_processes=2',
    '--process_id=$(JOB_COMPLETION_INDEX)',
  ]
  assert container['env'] == [{'name': 'V', 'value': '$$x'}]
  assert container['resources'] == {'limits': {'nvidia.com/gpu': 8}}
  assert template['volumes'][0]['persistentVolumeClaim'] == {'claimName': 'c'}
  assert container['volumeMounts'][0]['mountPath'] == '/shared'


def test_kubernetes_tpu():
  [jobs] = manifests(
    'resume', *TPU, '--topology=4x8', '--slices=3', '--dry_run', *SHARED
  )
  assert jobs['kind'] == 'JobSet'
  [slices] = jobs['spec']['replicatedJobs']
  assert slices['replicas'] == 3
  spec = slices['template']['spec']
  assert spec['completions'] == spec['parallelism'] == 8  # 32 chips, 4 a host
  template = spec['template']['spec']
  assert template['nodeSelector'] == {
    'cloud.google.com/gke-tpu-accelerator': 'tpu-v6e-slice',
    'cloud.google.com/gke-tpu-topology': '4x8',
  }
  [container] = template['containers']
  assert container['command'][:2] == ['launch/with_flags.sh', 'tpu']
  assert container['args'] == [*SHARED[1:], '--config.mesh.slices=3']
  assert container['resources'] == {'limits': {'google.com/tpu': 4}}


def test_kubernetes_with_a_bucket():
  flags = ['--', '--config=c.py', '--workdir=gs://b/e']
  for arguments in (
    ['--nodes=2', '--gpus=8'],
    ['--tpu=tpu-v6e-slice', '--topology=4x8'],
  ):
    own = ['--name=e', '--image=i', '--account=a', *arguments, '--dry_run']
    spec = manifests('start', *own, *flags)[-1]['spec']
    if '--nodes=2' not in arguments:
      spec = spec['replicatedJobs'][0]['template']['spec']
    pod = spec['template']['spec']
    assert pod['serviceAccountName'] == 'a'
    assert '/shared' not in str(pod)
    assert 'persistentVolumeClaim' not in str(pod)
    assert '--workdir=gs://b/e' in pod['containers'][0]['args']


def test_kubernetes_applies(tools):
  """kubectl is given the very text; the first that fails ends it."""
  launchers.write_tool(tools, 'kubectl', 'cat >"$(dirname "$0")/text"')
  done = launchers.call('job', 'start', *GPU, *SHARED, folder=tools)
  assert done.returncode == 0, done.stderr
  assert launchers.calls(tools) == [
    'kubectl --namespace=default apply --filename=-'
  ]
  objects = list(yaml.safe_load_all((tools / 'text').read_text()))
  assert objects == manifests('start', *GPU, '--dry_run', *SHARED)
  launchers.write_tool(tools, 'kubectl', 'exit 3')
  done = launchers.call('job', 'resume', *GPU, *SHARED, folder=tools)
  assert done.returncode == 3
  assert len(launchers.calls(tools)) == 2
  assert ' delete ' in launchers.calls(tools)[1]
