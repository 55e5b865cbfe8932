"""/metrics by Prometheus' own parser.  usage: metrics_test.py BUILD_DIR [NAME]"""

import json
import socket
import sys
import time
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

import server

NAME = 'a "model"\\\tof ü'
SAMPLES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def get(url):
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        kind = answer.headers["Content-Type"]
        assert kind == "text/plain; version=0.0.4; charset=utf-8", kind
        return answer.read().decode("utf-8")


def figures(url):
    """name -> {labels without model_name: value}"""
    found = {}
    for family in text_string_to_metric_families(get(url)):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found.setdefault(sample.name, {})[tuple(sorted(labels.items()))] = sample.value
    return found


def complete(url, **fields):
    body = {"prompt": [2, 300, 301, 302], "max_tokens": 8, "ignore_eos": True, **fields}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def settled(url):
    """Figures once the worker's own are younger than the last request."""
    time.sleep(2.5)  # they are asked for once a second
    return figures(url)


def test_every_family_is_whole(url):
    names = set()
    for family in text_string_to_metric_families(get(url)):
        assert family.type in SAMPLES, (family.name, family.type)
        assert family.documentation and family.samples, family.name
        assert family.name not in names, f"{family.name} stands in two places"
        names.add(family.name)
        for sample in family.samples:
            suffix = sample.name[len(family.name):]
            if family.type == "counter":
                assert suffix == "_total", sample.name
            else:
                assert suffix in SAMPLES[family.type], sample.name
            assert sample.labels["model_name"] == NAME, sample
            assert sample.value == sample.value, sample


def test_histograms_are_cumulated(url):
    complete(url)
    for family in text_string_to_metric_families(get(url)):
        if family.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples
                   if s.name.endswith("_bucket")]
        total = [s.value for s in family.samples if s.name.endswith("_count")]
        assert buckets == sorted(buckets) and buckets[-1][0] == float("inf"), family.name
        assert [v for _, v in buckets] == sorted(v for _, v in buckets), family.name
        assert total == [buckets[-1][1]], family.name


def test_names_of_dashboards(url):
    found = figures(url)
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total",
                 "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
                 "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"):
        assert name in found, name
    for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token",
                 "request_time_per_output_token", "e2e_request_latency", "request_queue_time",
                 "request_inference_time", "request_prefill_time", "request_decode_time"):
        assert f"vllm:{name}_seconds_bucket" in found, name
    reasons = {dict(labels)["finished_reason"] for labels in found["vllm:request_success_total"]}
    assert reasons == {"stop", "length", "abort", "error"}, reasons


def test_a_request_is_counted_once_everywhere(url):
    before = settled(url)
    complete(url)
    after = settled(url)

    def grown(name, **labels):
        key = tuple(sorted(labels.items()))
        return after[name][key] - before[name][key]
    assert grown("bezel:requests_arrived_total") == 1
    assert grown("bezel:requests_finished_total") == 1
    assert grown("vllm:request_success_total", finished_reason="length") == 1
    assert grown("vllm:prompt_tokens_total") == 4
    assert grown("vllm:generation_tokens_total") == 8
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds",
                 "request_time_per_output_token_seconds", "request_inference_time_seconds",
                 "request_queue_time_seconds", "request_prompt_tokens"):
        assert grown(f"vllm:{name}_count") == 1, name
    assert grown("vllm:inter_token_latency_seconds_count") == 7
    assert grown("vllm:time_per_output_token_seconds_count") == 7
    assert grown("vllm:request_generation_tokens_sum") == 8
    assert grown("bezel:worker_steps_total") == grown("bezel:steps_total") >= 8


def test_pools_and_capacity(url):
    found = settled(url)
    pages = {"local": 40, "global": 64}
    for pool, size in pages.items():
        key = (("pool", pool),)
        assert found["bezel:pool_pages"][key] == size
        assert found["bezel:pool_page_bytes"][key] > 0
        parts = [found[f"bezel:pool_{part}_pages"][key] for part in ("held", "cached", "free")]
        assert sum(parts) == size and parts[0] == 0, parts
    fit = {dict(k)["tokens"]: v for k, v in found["bezel:requests_that_fit"].items()}
    # 16 global pages of 64 tokens each; 8,192 tokens would need 128
    assert fit == {"1024": 4, "8192": 0, "32768": 0, "131072": 0}, fit
    assert found["bezel:request_tokens_max"][()] == 64 * 64
    assert found["bezel:pool_page_tokens"][()] == 64
    assert 0 <= found["bezel:worker_stats_age_seconds"][()] < 3
    assert found["vllm:kv_cache_usage_perc"][()] == 0


def test_refusals_are_counted(url):
    before = figures(url)
    try:
        complete(url, max_tokens=5000)
        raise AssertionError("5,004 tokens fit into 4,096")
    except urllib.error.HTTPError as error:
        assert error.code == 400
    after = figures(url)
    for what, more in (("arrived", 1), ("rejected", 1), ("finished", 0), ("failed", 0)):
        name = f"bezel:requests_{what}_total"
        assert after[name][()] - before[name][()] == more, what


def test_refusals_by_status(url):
    before = figures(url)["bezel:http_refusals_total"]
    for path, status in (("/no/route", 404), ("/v1/completions", 405)):
        try:
            urllib.request.urlopen(url + path, timeout=10)
            raise AssertionError(f"{path} is served")
        except urllib.error.HTTPError as error:
            assert error.code == status, (path, error.code)
    after = figures(url)["bezel:http_refusals_total"]
    grown = {dict(key)["status"]: after[key] - before[key] for key in after}
    assert {k: v for k, v in grown.items() if v} == {"404": 1, "405": 1}, grown


def until(what, condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def test_all_is_zero_after_a_mass_cancel(url):
    count = 40
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": [2, 300, 301], "max_tokens": 4000, "ignore_eos": True,
                       "stream": True}).encode()
    wire = (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) +
            body)
    before = settled(url)
    clients = [socket.create_connection((host, int(port)), timeout=10) for _ in range(count)]
    for client in clients:
        client.sendall(wire)
    until("all are open", lambda: figures(url)["bezel:requests_open"][()] == count)
    until("some run", lambda: figures(url)["vllm:num_requests_running"][()] > 0)
    for client in clients:
        client.close()
    until("all have ended", lambda: figures(url)["bezel:requests_open"][()] == 0)
    after = settled(url)
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc", "bezel:requests_open", "bezel:worker_sequences",
                 "bezel:pool_held_pages"):
        assert set(after[name].values()) == {0}, (name, after[name])
    assert after["bezel:pool_quota_left_pages"] == after["bezel:pool_pages"]
    assert after["bezel:http_connections"][()] == 1  # that of /metrics

    def grown(name):
        return sum(after[name].values()) - sum(before[name].values())
    assert grown("bezel:requests_cancelled_total") == grown("bezel:clients_gone_total") == count
    assert grown("vllm:request_success_total") == count


def test_counters_add_up(url):
    found = settled(url)

    def total(name):
        return sum(found[name].values())

    def of(what):
        return total(f"bezel:requests_{what}_total")
    assert of("arrived") == sum(of(k) for k in ("finished", "cancelled", "rejected", "failed"))
    assert total("vllm:request_success_total") == of("arrived") - of("rejected")
    classes = {dict(k)["class"]: v for k, v in found["bezel:http_responses_total"].items()}
    assert classes["4xx"] + classes["5xx"] == total("bezel:http_refusals_total"), classes
    tokens = {dict(k)["kind"]: v for k, v in found["bezel:step_tokens_total"].items()}
    new = total("vllm:prompt_tokens_total") - total("vllm:prefix_cache_hits_total")
    # A client may leave between the admission of its three tokens and their step.
    assert new - 3 * of("cancelled") <= tokens["prompt"] <= new, (tokens, new)
    # Each prompt's last step gives a token, too; some were under way when their client left.
    assert tokens["decode"] <= total("vllm:generation_tokens_total") + 2 * of("cancelled"), tokens
    assert total("bezel:ipc_records_total") >= (total("bezel:steps_total") +
                                                total("vllm:generation_tokens_total"))
    assert total("bezel:ipc_messages_total") >= total("bezel:steps_total")
    assert total("bezel:ipc_bytes_total") > total("bezel:ipc_messages_total")


if __name__ == "__main__":
    with server.Server(sys.argv[1], "--served-model-name", NAME, "--local-pages", "40",
                       "--global-pages", "64") as running:
        sys.exit(server.run_tests(sys.modules[__name__], running.url))
