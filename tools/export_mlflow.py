#!/usr/bin/env python3
"""Sends a run's metrics.jsonl to MLflow, during the run or after it.

Called again it sends what has come since. Needs the package mlflow (or mlflow-skinny), which Keel does not;
MLFLOW_TRACKING_URI and the other variables of it are as mlflow has them. What mlflow takes in no name becomes "_":
mfu(%) is mfu___. With --dry-run nothing is sent, and no package needed.
"""

import argparse
import math
import pathlib
import re
import sys
import time

import metrics_lines

PATH_TAG = "keel.run_folder"
BATCH = 1000  # metrics of one call at most, as mlflow has it


def taken_name(name):
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder, trainer.default_local_dir")
    parser.add_argument("--experiment", default="keel")
    parser.add_argument("--name", help="of the run; default: its folder's name")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent")
    args = parser.parse_args()
    steps = metrics_lines.read(args.run)
    renamed = {}
    for step, row in steps.items():
        renamed[step] = {taken_name(name): value for name, value in row.items()}
        if len(renamed[step]) < len(row):
            sys.exit(f"step {step}: two metrics have the same name at mlflow, of {', '.join(sorted(row))}")
    name = args.name or metrics_lines.run_name(args.run)
    if args.dry_run:
        return metrics_lines.describe(renamed, f"mlflow experiment {args.experiment}, run {name}")
    try:
        import mlflow
        from mlflow.entities import Metric
    except ImportError as error:
        sys.exit(f"the package mlflow cannot be imported ({error}): pip install mlflow-skinny, or see what there is with --dry-run")
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(args.experiment)
    experiment = found.experiment_id if found else client.create_experiment(args.experiment)
    path = str(pathlib.Path(args.run).resolve())
    known = [run for run in client.search_runs([experiment]) if run.data.tags.get(PATH_TAG) == path]
    run = known[0] if known else client.create_run(experiment, run_name=name, tags={PATH_TAG: path})
    # By what is there, and not by the newest step: its validation and its saves say more of a step later.
    there = {(name, point.step) for name in run.data.metrics for point in client.get_metric_history(run.info.run_id, name)}
    now = int(time.time() * 1000)
    metrics = [
        Metric(name, float(value), now, step)
        for step, row in renamed.items()
        for name, value in row.items() if math.isfinite(value) and (name, step) not in there  # a store of files has no others
    ]  # fmt: skip
    for begin in range(0, len(metrics), BATCH):
        client.log_batch(run.info.run_id, metrics=metrics[begin : begin + BATCH])
    print(f"{len(metrics)} values of {len({metric.step for metric in metrics})} steps sent")


if __name__ == "__main__":
    main()
