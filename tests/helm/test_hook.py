"""The pod of `helm test`: it comes in as a client does, whatever locks the door, and nothing more is given to it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import yaml
from headstart.cli import generate
from support.helm import CHART, NAMESPACE, Json, render
from support.value_case import FULLNAME, read, values_of

_TLS = {"server.tls.enabled": True, "server.tls.existingSecret": "cert"}
_AUTH = {"server.auth.existingSecret": "keys"}
_POD = ("Pod", "test")


def _pod(**keys: Any) -> Json:
    found: Json = render(values_of(keys))["Pod", f"{FULLNAME}-test"]
    return found


def _sent(pod: Json) -> argparse.Namespace:
    """Its arguments, as the program reads them. Raises what argparse raises."""
    program, *rest = pod["spec"]["containers"][0]["args"]
    assert program == "generate"
    parser = argparse.ArgumentParser(exit_on_error=False)
    generate.configure(parser)
    return parser.parse_args(rest)


def _files(pod: Json) -> dict[str, tuple[str, str]]:
    """Path in the container: the Secret and its key."""
    found = {}
    mounts = {each["name"]: each["mountPath"] for each in pod["spec"]["containers"][0].get("volumeMounts", [])}
    for volume in pod["spec"].get("volumes", []):
        for source in volume.get("projected", {}).get("sources", [volume]):
            secret = source["secret"]
            for item in secret["items"]:
                name = secret.get("secretName") or secret["name"]
                found[f"{mounts[volume['name']]}/{item['path']}"] = (name, item["key"])
    return found


def test_it_asks_twice_through_the_client_service_and_checks_the_cache() -> None:
    pod = _pod()
    sent = _sent(pod)
    service = render()["Service", FULLNAME]
    assert sent.endpoint == f"{FULLNAME}.{NAMESPACE}.svc:{service['spec']['ports'][0]['port']}"
    assert sent.check_cache
    assert pod["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    assert pod["spec"]["containers"][0]["image"] == "headstart/operator:0.1.0"
    assert pod["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("block_size", [1, 16, 64, 256])
def test_its_prompt_fills_a_block(block_size: int) -> None:
    prompt = _sent(_pod(**{"engine.cache.block_size": block_size})).prompt
    assert len(prompt.split()) > block_size  # a word is a token at least


def test_it_does_not_ask_for_a_hit_where_nothing_is_cached() -> None:
    assert not _sent(_pod(**{"engine.cache.enable_prefix_caching": False})).check_cache


@pytest.mark.parametrize(("policy", "checks"), [("round-robin", False), ("least-loaded", False), ("prefix", True)])
def test_it_does_not_ask_for_a_hit_where_the_second_call_may_go_to_another_pod(policy: str, checks: bool) -> None:
    settings = {"operator.settings.policy": policy}
    assert _sent(_pod(**settings)).check_cache is checks
    assert _sent(_pod(**settings, **{"operator.enabled": False})).check_cache


@pytest.mark.parametrize("front", ["operator", "engine"])
def test_its_labels_select_it_for_no_service(front: str) -> None:
    objects = render(values_of({"operator.enabled": front == "operator"}))
    labels = objects["Pod", f"{FULLNAME}-test"]["metadata"]["labels"]
    for (kind, _), item in objects.items():
        if kind == "Service":
            assert not item["spec"]["selector"].items() <= labels.items()


def test_it_gets_through_a_network_policy_that_names_clients() -> None:
    objects = render(values_of({"networkPolicy.clients": [{"podSelector": {"matchLabels": {"app": "x"}}}]}))
    (peers,) = [
        rule["from"]
        for rule in read(objects, ("NetworkPolicy", "operator", "spec", "ingress"))
        if len(rule["ports"]) == 2
    ]
    labels = objects["Pod", f"{FULLNAME}-test"]["metadata"]["labels"].items()
    assert [each["podSelector"]["matchLabels"].items() <= labels for each in peers] == [False, True]


def test_it_trusts_the_certificate_and_shows_its_own_where_one_is_asked_for() -> None:
    plain = _pod(**_TLS)
    assert _sent(plain).ca_file == "/run/headstart/tls/ca.crt"
    assert _files(plain) == {"/run/headstart/tls/ca.crt": ("cert", "ca.crt")}
    mutual = _pod(**_TLS, **{"server.tls.clientCAKey": "clients.crt"})
    sent = _sent(mutual)
    assert {sent.ca_file, sent.cert_file, sent.key_file} == _files(mutual).keys()
    assert _files(mutual)[sent.key_file] == ("cert", "tls.key")


def test_without_a_router_it_expects_the_name_in_the_pods_certificate() -> None:
    sent = _sent(_pod(**_TLS, **{"operator.enabled": False, "server.tls.serverName": "engine.example"}))
    assert sent.tls_server_name == "engine.example"
    assert _sent(_pod(**_TLS)).tls_server_name == ""


def test_it_trusts_who_signed_the_routers_own_certificate() -> None:
    own = {**_TLS, "operator.tls.existingSecret": "front"}
    assert _files(_pod(**own)).popitem()[1] == ("front", "ca.crt")
    assert _files(_pod(**own, **{"tests.caSecret": "roots"})).popitem()[1] == ("roots", "ca.crt")


def test_its_key_is_that_of_the_tenant() -> None:
    assert _files(_pod(**_AUTH)) == {_sent(_pod(**_AUTH)).api_key_file: ("keys", "operator")}
    assert _files(_pod(**_AUTH, **{"tests.tenant": "alice"})).popitem()[1] == ("keys", "alice")


def test_every_value_of_it_is_shown_in_this_file() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["tests"]
    assert values.keys() == {"enabled", "tenant", "caSecret", "timeoutSeconds", "resources"}


def test_its_values_change_it() -> None:
    pod = _pod(**{"tests.timeoutSeconds": 33, "tests.resources": {"limits": {"memory": "1Gi"}}})
    assert (pod["spec"]["activeDeadlineSeconds"], _sent(pod).timeout) == (33, 33)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}
    assert read(render(values_of({"tests.enabled": False})), _POD) == "absent"


def test_it_is_as_restricted_as_the_pods() -> None:
    spec = _pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not spec["automountServiceAccountToken"]
