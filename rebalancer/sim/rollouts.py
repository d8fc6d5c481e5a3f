"""The plant as a canary rollout sees it: Deployments, pods by image, and the writes."""

from __future__ import annotations

from collections import Counter as Count

from rebalancer.core.rollout.decision import (
    Action,
    DeleteCanary,
    EnsureCanary,
    PauseStable,
    ReleaseStable,
    ScaleCanary,
    SetTemplate,
)
from rebalancer.core.rollout.model import CanarySeen, ClusterSeen, Spec, StableSeen, Template
from rebalancer.core.rollout.revision import revision_of
from rebalancer.errors import ClusterError
from rebalancer.ports import Outcome
from rebalancer.sim.plant import Deployment, Plant

CONTAINER = "main"


def template(image: str) -> Template:
    """The pod template of an image."""
    return {"metadata": {"labels": {}}, "spec": {"containers": [{"name": CONTAINER, "image": image}]}}


def _image(of: Template) -> str:
    spec = of["spec"]
    assert isinstance(spec, dict)  # templates of this world are made by `template`, or copies with another image
    return str(spec["containers"][0]["image"])


class SimRollouts:
    """Implements the rollout's actuator on the plant."""

    def __init__(self, plant: Plant) -> None:
        """Takes the plant."""
        self._plant = plant

    async def observe(self, spec: Spec, cluster: str) -> ClusterSeen:
        """Reads one cluster.

        Raises:
            ClusterError: the cluster is down.
        """
        plant = self._plant
        if cluster in plant.down:
            raise ClusterError("unreachable", f"{cluster} does not answer")
        deployment = plant.deployments[spec.workload_key, cluster]
        canary = plant.canaries.get((spec.workload_key, cluster))
        images = {deployment.image, deployment.running_image, *(p.image for p in deployment.pods)}
        if canary is not None:
            images.add(canary.image)
        templates = {image: template(image) for image in images}
        return ClusterSeen(
            name=cluster,
            stable=self._stable(deployment),
            canary=None if canary is None else self._canary(canary),
            pod_hashes={image: revision_of(t) for image, t in templates.items()},
            templates={revision_of(t): t for t in templates.values()},
        )

    def _stable(self, deployment: Deployment) -> StableSeen:
        now = self._plant.now
        return StableSeen(
            wanted=deployment.wanted,
            paused=deployment.paused,
            template=template(deployment.image),
            revision=revision_of(template(deployment.image)),
            pods=Count(revision_of(template(p.image)) for p in deployment.pods),
            ready=Count(revision_of(template(p.image)) for p in deployment.ready(now)),
            settled=deployment.paused or deployment.running_image == deployment.image,
            resource_version=str(deployment.version),
            held=deployment.paused,
        )

    def _canary(self, canary: Deployment) -> CanarySeen:
        return CanarySeen(
            wanted=canary.wanted,
            revision=revision_of(template(canary.image)),
            pods=len(canary.pods),
            ready=len(canary.ready(self._plant.now)),
            resource_version=str(canary.version),
        )

    async def apply(self, spec: Spec, action: Action) -> Outcome:
        """Carries out one action."""
        plant, key = self._plant, (spec.workload_key, action.cluster)
        if action.cluster in plant.down:
            return Outcome("unreachable", f"{action.cluster} does not answer")
        match action:
            case EnsureCanary():
                image = _image(action.template)
                canary = plant.canaries.get(key)
                if canary is None or canary.image != image:
                    plant.canaries[key] = Deployment(action.replicas, image, image)
                else:
                    canary.wanted = action.replicas
            case ScaleCanary():
                canary = plant.canaries[key]
                canary.wanted = action.replicas
                del canary.pods[action.replicas :]
            case DeleteCanary():
                plant.canaries.pop(key, None)
            case PauseStable():
                plant.deployments[key].paused = True
            case ReleaseStable():
                if action.template is not None:
                    plant.deployments[key].image = _image(action.template)
                plant.deployments[key].paused = False
            case SetTemplate():
                plant.deployments[key].image = _image(action.template)
                plant.deployments[key].paused = action.paused
        plant.deployments[key].version += 1
        return Outcome("done")
