"""Uploads a checkpoint of a server to a hub, by the server.

    python cookbook/client/twinkle/upload_to_hub.py twinkle://RUN/weights/NAME ms://OWNER/NAME

TWINKLE_HUB_TOKEN: the hub's, of which the server keeps nothing. TWINKLE_MODEL_ID,
TWINKLE_SERVER_URL, TWINKLE_SERVER_TOKEN: as self_cognition.py's.
"""

import os
import sys

from twinkle_client import init_twinkle_client
from twinkle_client.model import MultiLoraTransformersModel

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")


def main():
    if len(sys.argv) != 3:
        sys.exit("give a twinkle:// path, and the repository that it goes to")
    path, repository = sys.argv[1:]
    init_twinkle_client()
    model = MultiLoraTransformersModel(model_id=MODEL)
    token = os.environ.get("TWINKLE_HUB_TOKEN")
    model.upload_to_hub(path, repository, hub_token=token)  # returns when it is there
    print("uploaded", path, "to", repository)


if __name__ == "__main__":
    main()
