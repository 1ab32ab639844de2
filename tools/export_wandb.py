#!/usr/bin/env python3
"""Sends a run's metrics.jsonl to Weights & Biases, during the run or after it.

Called again it sends the steps that have come since. The newest one stays until a later one is there, since a
validation or a save may say more of it, and wandb takes nothing for a step that was sent: when the run has ended,
--last sends it, too. Needs the package wandb, which Keel does not; WANDB_API_KEY,
WANDB_MODE and the other variables of it are as wandb has them. With --dry-run nothing is sent, and no package needed.
"""

import argparse
import hashlib
import pathlib
import sys

import metrics_lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder, trainer.default_local_dir")
    parser.add_argument("--project", default="keel")
    parser.add_argument("--entity", help="user or team; default: wandb's own")
    parser.add_argument("--name", help="of the run; default: its folder's name")
    parser.add_argument("--id", help="of the run at wandb; default: made of the folder's path")
    parser.add_argument("--last", action="store_true", help="send the newest step, too: nothing more is said of it")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent")
    args = parser.parse_args()
    steps = metrics_lines.read(args.run)
    name = args.name or metrics_lines.run_name(args.run)
    if args.dry_run:
        return metrics_lines.describe(steps, f"wandb project {args.project}, run {name}")
    try:
        import wandb
    except ImportError as error:
        sys.exit(f"the package wandb cannot be imported ({error}): pip install wandb, or see what there is with --dry-run")
    path = str(pathlib.Path(args.run).resolve())
    run = wandb.init(
        project=args.project, entity=args.entity, name=name, resume="allow",
        id=args.id or hashlib.sha256(path.encode()).hexdigest()[:16],
        config={"keel_config": metrics_lines.config_text(args.run)},
    )  # fmt: skip
    first = run.step if run.resumed else -1
    newest = max(steps, default=None)
    sent = [step for step in steps if step >= first and (args.last or step != newest)]
    for step in sent:
        run.log(steps[step], step=step)
    run.finish()
    print(f"{len(sent)} of {len(steps)} steps sent; those before step {first} were there" if first > 0 else f"{len(sent)} steps sent")
    if newest is not None and newest >= first and not args.last:
        print(f"step {newest} is the newest, of which a validation or a save may still say something: --last sends it")


if __name__ == "__main__":
    main()
