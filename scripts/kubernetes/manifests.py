"""Kubernetes objects of a topology.

The root's pod is a Deployment of one: it serves HTTP, and supervises. Each node that computes is a StatefulSet, whose
pods join the root. A pod of a replica asks for its replica when it starts, and drains it before it ends, so that
`kubectl scale` and rolling updates lose no request. Pods find the root by a headless Service; only they reach each
other.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from pageant.actors.runtime.topology import REPLICA_MARK
from pageant.actors.runtime.transport.keys import Keys
from pageant.scripts.kubernetes.pods import Division, PodPlan

ROOT_PORT, NODE_PORT = 5700, 5701
FOLDER = "/etc/pageant"
TOPOLOGY = f"{FOLDER}/topology.yaml"
KEY_FOLDER = "/run/pageant"
KEY = f"{KEY_FOLDER}/pageant.key"
"""Each pod's own copy of the key: a mounted Secret may be read by its group, and such a key is refused."""
SECRET_FOLDER = "/run/pageant-secret"
KEY_FILE = "pageant.key"
USER = 10001
GPU = "nvidia.com/gpu"
STARTS_WITHIN = 1800
"""Seconds within which a pod serves: it may read a large model first."""
PROBE_SECONDS = 5
MARGIN_SECONDS = 60
"""Seconds of a pod's end beside the patience with its requests."""
PATIENCE = 30


@dataclass(frozen=True)
class Wanted:
    """Wishes of a cluster's user beside the topology.

    Attributes:
        name: of the Deployment and of the Service; all other names begin with it.
        image: with Pageant and the classes that the topology names.
        claim: a PersistentVolumeClaim with models, mounted read-only at `claim_path`; none where the image has them.
        memory: what each pod that computes asks for, such as `16Gi`; none leaves it open.
        patience: seconds that requests have to end where they are, when a replica is drained.
    """

    name: str
    image: str
    claim: str | None = None
    claim_path: str = "/models"
    memory: str | None = None
    patience: int = PATIENCE


def write(division: Division, wanted: Wanted, keys: Keys) -> str:
    """Return the manifests as YAML, in the order in which they are to be applied."""
    return yaml.dump_all(objects(division, wanted, keys), Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and no aliases, which people find hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def objects(division: Division, wanted: Wanted, keys: Keys) -> Iterator[dict[str, Any]]:
    """Yield the objects of a topology."""
    maker = _Maker(division, wanted)
    yield maker.config_map()
    if division.pods:
        yield maker.secret(keys)
    yield maker.service()
    if division.pods:
        yield maker.headless_service("front", "front")
        yield maker.headless_service("nodes", "node")
    yield from maker.network_policies()
    yield maker.deployment()
    for pod in division.pods:
        yield maker.stateful_set(pod)


class _Maker:
    """Makes the objects of one topology."""

    def __init__(self, division: Division, wanted: Wanted) -> None:
        self._division, self._wanted, self._name = division, wanted, wanted.name
        self._join = f"tcp://{self._name}-front:{ROOT_PORT}"

    def _labels(self, component: str | None = None) -> dict[str, str]:
        labels = {"app.kubernetes.io/name": "pageant", "app.kubernetes.io/instance": self._name}
        return labels if component is None else {**labels, "app.kubernetes.io/component": component}

    def _object(self, kind: str, version: str, name: str, **rest: Any) -> dict[str, Any]:
        metadata = {"name": name, "labels": self._labels()}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}

    # What pods read.

    def config_map(self) -> dict[str, Any]:
        """Return the topology, as the root's pod reads it."""
        text = yaml.safe_dump(self._division.topology, sort_keys=False)
        return self._object("ConfigMap", "v1", f"{self._name}-topology", data={"topology.yaml": text})

    def secret(self, keys: Keys) -> dict[str, Any]:
        """Return the key, without which no node joins."""
        data = {KEY_FILE: base64.b64encode(msgspec.json.encode(keys)).decode()}
        return self._object("Secret", "v1", f"{self._name}-key", type="Opaque", data=data)

    # Who reaches whom.

    def service(self) -> dict[str, Any]:
        """Return the address of the server."""
        ports = [{"name": "http", "port": self._division.port, "targetPort": "http"}]
        return self._object(
            "Service", "v1", self._name, spec={"selector": self._labels("front"), "ports": ports}
        )

    def headless_service(self, suffix: str, component: str) -> dict[str, Any]:
        """Return the name of pods in the cluster's DNS; nodes join before the root is ready."""
        port = {"name": "nodes", "port": ROOT_PORT if component == "front" else NODE_PORT}
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": self._labels(component),
            "ports": [port],
        }
        return self._object("Service", "v1", f"{self._name}-{suffix}", spec=spec)

    def network_policies(self) -> Iterator[dict[str, Any]]:
        """Yield what lets everybody reach the server, and nobody but the topology's own pods the rest."""
        own = {"podSelector": {"matchLabels": self._labels()}}
        policy = "networking.k8s.io/v1"
        yield self._object(
            *("NetworkPolicy", policy, f"{self._name}-own"),
            spec={**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]},
        )
        spec = {
            "podSelector": {"matchLabels": self._labels("front")},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": "http", "protocol": "TCP"}]}],
        }
        yield self._object("NetworkPolicy", policy, f"{self._name}-http", spec=spec)

    # Pods.

    def deployment(self) -> dict[str, Any]:
        """Return the root's pod. There is never a second one beside it."""
        division = self._division
        command = [
            "pageant",
            "serve",
            "--topology",
            TOPOLOGY,
            "--host",
            "0.0.0.0",
            "--port",
            str(division.port),
        ]
        if division.pods:
            command += ["--set", f"listen=tcp://$(POD_IP):{ROOT_PORT}"]
        http = {"path": "/health", "port": "http"}
        key = {"name": f"{self._name}-api-key", "key": "key", "optional": True}
        container = {
            "name": "front",
            "command": command,
            "env": [
                _field("POD_IP", "status.podIP"),
                {"name": "PAGEANT_API_KEY", "valueFrom": {"secretKeyRef": key}},
            ],
            "ports": [{"name": "http", "containerPort": division.port}],
            "startupProbe": {"httpGet": http, **_every(PROBE_SECONDS, STARTS_WITHIN)},
            "readinessProbe": {"httpGet": {**http, "path": "/ready"}, "periodSeconds": PROBE_SECONDS},
            "livenessProbe": {
                "httpGet": http,
                "periodSeconds": 10,
                "timeoutSeconds": 15,
                "failureThreshold": 6,
            },
            "resources": self._resources(division.gpus, 0),
        }
        spec = {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": self._labels("front")},
            "template": self._pod("front", container, reads_topology=True),
        }
        return self._object("Deployment", "apps/v1", self._name, spec=spec)

    def stateful_set(self, pod: PodPlan) -> dict[str, Any]:
        """Return the pods of a node: one, or one for each replica."""
        name = pod.node.replace(REPLICA_MARK, "$(POD_INDEX)")
        index = "metadata.labels['apps.kubernetes.io/pod-index']"
        container: dict[str, Any] = {
            "name": "node",
            "command": [
                *("pageant", "node", "--join", self._join, "--name", name, "--keys", KEY),
                *("--endpoint", f"tcp://$(POD_IP):{NODE_PORT}"),
            ],
            "env": [_field("POD_IP", "status.podIP"), _field("POD_INDEX", index)],
            "ports": [{"name": "nodes", "containerPort": NODE_PORT}],
            "startupProbe": {"tcpSocket": {"port": "nodes"}, **_every(PROBE_SECONDS, STARTS_WITHIN)},
            "resources": self._resources(pod.gpus, pod.cpus),
        }
        first = []
        if pod.models:
            container["startupProbe"] = {
                "exec": {"command": ["sh", "-c", self._each(pod, "add replica-$POD_INDEX")]},
                **_every(PROBE_SECONDS, STARTS_WITHIN),
                "timeoutSeconds": MARGIN_SECONDS,
            }
            drain = self._each(pod, f"drain replica-$POD_INDEX --patience {self._wanted.patience}")
            container["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", f"{drain} || true"]}}}
            ask = self._each(pod, "add replica-$POD_INDEX --no-wait")
            first.append(
                {"name": "replica", "command": ["sh", "-c", ask], "env": [_field("POD_INDEX", index)]}
            )
        component = f"node-{pod.name}"
        labels = {"matchLabels": {**self._labels("node"), "pageant.dev/node": component}}
        template = self._pod("node", container, first=first)
        template["metadata"]["labels"]["pageant.dev/node"] = component
        spec = {
            "replicas": pod.count,
            "serviceName": f"{self._name}-nodes",
            "podManagementPolicy": "Parallel",
            "selector": labels,
            "template": template,
        }
        return self._object("StatefulSet", "apps/v1", f"{self._name}-{pod.name}", spec=spec)

    def _each(self, pod: PodPlan, what: str) -> str:
        """Return a shell's command that does something with the pod's replica of each model."""
        where = f"--topology {self._join} --keys {KEY}"
        commands = [
            f"pageant replicas {what} {where}" + (f" --model {model}" if model else "")
            for model in pod.models
        ]
        return " && ".join(commands)

    def _pod(
        self,
        component: str,
        container: dict[str, Any],
        *,
        reads_topology: bool = False,
        first: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Return the template of a pod with one container.

        Args:
            first: containers that run to their end before it.
        """
        volumes, mounts = self._volumes(reads_topology=reads_topology)
        shared = {"image": self._wanted.image, "securityContext": CONFINED, "volumeMounts": mounts}
        starting = [{**one, **shared} for one in first or ()]
        if self._division.pods:
            starting.insert(0, {**_key_copier(), **shared})
        spec = {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": self._wanted.patience + MARGIN_SECONDS,
            "securityContext": {
                **{"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"initContainers": starting} if starting else {}),
            "containers": [{**container, **shared}],
            "volumes": volumes,
        }
        annotations = {"pageant.dev/topology": _digest(self._division.topology)} if reads_topology else {}
        metadata: dict[str, Any] = {"labels": self._labels(component)}
        return {
            "metadata": {**metadata, **({"annotations": annotations} if annotations else {})},
            "spec": spec,
        }

    def _volumes(self, *, reads_topology: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return a pod's volumes, and where they are mounted. `/dev/shm` has the rings of groups of executors."""
        memory = {"medium": "Memory"}
        volumes: list[dict[str, Any]] = [
            {"name": "shm", "emptyDir": memory},
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ]
        mounts: list[dict[str, Any]] = [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "home", "mountPath": "/home/pageant"},
            {"name": "tmp", "mountPath": "/tmp"},
        ]
        if reads_topology:
            volumes.append({"name": "topology", "configMap": {"name": f"{self._name}-topology"}})
            mounts.append({"name": "topology", "mountPath": FOLDER, "readOnly": True})
        if self._division.pods:
            secret = {"secretName": f"{self._name}-key", "defaultMode": 0o440}
            volumes += [{"name": "secret", "secret": secret}, {"name": "key", "emptyDir": memory}]
            mounts.append({"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True})
            mounts.append({"name": "key", "mountPath": KEY_FOLDER})
        if self._wanted.claim is not None:
            claim = {"claimName": self._wanted.claim, "readOnly": True}
            volumes.append({"name": "models", "persistentVolumeClaim": claim})
            mounts.append({"name": "models", "mountPath": self._wanted.claim_path, "readOnly": True})
        return volumes, mounts

    def _resources(self, gpus: int, cpus: int) -> dict[str, Any]:
        requests = {} if self._wanted.memory is None else {"memory": self._wanted.memory}
        if cpus:
            requests["cpu"] = str(cpus)
        found: dict[str, Any] = {"requests": requests} if requests else {}
        return {**found, "limits": {GPU: gpus}} if gpus else found


CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _key_copier() -> dict[str, Any]:
    """Return the container that makes a copy of the key which only the pod's user may read."""
    return {"name": "key", "command": ["install", "-m", "0600", f"{SECRET_FOLDER}/{KEY_FILE}", KEY]}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _every(seconds: int, within: int) -> dict[str, int]:
    return {"periodSeconds": seconds, "failureThreshold": within // seconds}


def _digest(topology: dict[str, Any]) -> str:
    """Return a mark that changes with the topology, so that its pod starts anew when another is applied."""
    return hashlib.blake2b(json.dumps(topology, sort_keys=True).encode(), digest_size=8).hexdigest()
