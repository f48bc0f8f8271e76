"""Renders or lints a Helm chart: chart.py CHART, with {"values", "name", "namespace"} as JSON on standard input.

Prints {"manifests": {template: text}, "lint": [message]}, or {"error": text} where the chart refuses the values.
"""

import json
import sys

from helm_python.chart import Chart, lint
from helm_python.errors import HelmError


def main() -> None:
    path, asked = sys.argv[1], json.load(sys.stdin)
    values = asked["values"]
    try:
        chart = Chart.load(path)
        chart.validate_schema(chart.merge_values(values))
        manifests = chart.render(values, name=asked["name"], namespace=asked["namespace"])
        report = lint(path, values, strict=True, kube_version="v1.32.0")
    except HelmError as error:
        print(json.dumps({"error": str(error)}))
        return
    print(json.dumps({"manifests": manifests, "lint": report["errors"]}))


main()
