"""lm-eval's local-completions, by the task and the command of docs/openai.md, on real questions."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/openai.md"


@pytest.mark.soak
def test_twenty_questions(start, smollm2_dir, data_dir, tmp_path):
    pytest.importorskip("lm_eval")
    section = PAGE.read_text().partition("## lm-eval")[2]
    (task,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (command,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/gsm8k_20.yaml").write_text(task)
    shutil.copy(data_dir / "gsm8k_train.jsonl", tmp_path)
    server = start(smollm2_dir, tmp_path / "state", "--name", "smollm2")
    command = command.replace("http://127.0.0.1:8000", server.url)
    command = command.replace("  lm_eval", f"  {sys.executable} -m lm_eval")
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hub")}
    subprocess.run(["bash", "-c", command], check=True, cwd=tmp_path, env=environment)
    assert server.stop() == 0
    (found,) = (tmp_path / "results").rglob("results_*.json")
    told = json.loads(found.read_text())
    assert told["n-samples"]["gsm8k_20"]["effective"] == 20
    assert 0 <= told["results"]["gsm8k_20"]["exact_match,last-number"] <= 1
