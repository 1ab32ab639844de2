#!/usr/bin/env python3
"""Sends a run's metrics.jsonl to MLflow, during the run or after it.

Called again it sends what has come since. Where the file has other lines than those that were sent, since the run went
back to an earlier step or began anew, all of it goes to a run of its own, with the tags keel.follows and
keel.differs_from_step. Needs the package mlflow (or mlflow-skinny), which Keel does not; MLFLOW_TRACKING_URI and the
other variables of it are as mlflow has them. What mlflow takes in no name becomes "_": mfu(%) is mfu___. With --dry-run
nothing is sent, and no package needed.
"""

import argparse
import math
import pathlib
import re
import sys
import time

import metrics_lines

PATH_TAG = "keel.run_folder"
SENT_TAG = "keel.lines_sent"  # metrics_lines.sent_text
FOLLOWS_TAG, DIFFERS_TAG = "keel.follows", "keel.differs_from_step"
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
    read = metrics_lines.read(args.run)
    renamed = {}
    for step, row in read.steps.items():
        renamed[step] = {taken_name(name): value for name, value in row.items()}
        if len(renamed[step]) < len(row):
            sys.exit(f"step {step}: two metrics have the same name at mlflow, of {', '.join(sorted(row))}")
    name = args.name or metrics_lines.run_name(args.run)
    if args.dry_run:
        return metrics_lines.describe(renamed, f"mlflow experiment {args.experiment}, run {name}", read.left_out_text())
    if not read.lines:
        return print(f"nothing to send: metrics.jsonl has no line of metrics{read.left_out_text()}")
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
    followed = {run.data.tags.get(FOLLOWS_TAG) for run in known}
    run = next((run for run in known if run.info.run_id not in followed), None)
    # What is remembered is written first: what then is not sent, another call finds missing.
    tags = {PATH_TAG: path, SENT_TAG: metrics_lines.sent_text(read.lines)}
    differs = None
    if run and SENT_TAG not in run.data.tags:
        print(metrics_lines.unchecked_text(run.info.run_id))
    elif run:
        differs = metrics_lines.first_other_step(read.lines, run.data.tags[SENT_TAG])
    if differs:
        name = metrics_lines.name_from(name, differs)
        print(metrics_lines.other_text(run.info.run_id, differs, name))
        tags |= {FOLLOWS_TAG: run.info.run_id, DIFFERS_TAG: differs}
    if differs or not run:
        run = client.create_run(experiment, run_name=name, tags=tags)
    else:
        client.set_tag(run.info.run_id, SENT_TAG, tags[SENT_TAG])
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
    print(f"{len(metrics)} values of {len({metric.step for metric in metrics})} steps sent{read.left_out_text()}")


if __name__ == "__main__":
    main()
