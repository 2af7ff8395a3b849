# huggingface/transformers#30104; h100:4GiB
"""Recordings are sorted by their language with a small Whisper encoder, and the accuracy is found by the Trainer."""

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, WhisperConfig, WhisperForAudioClassification


class Recordings(Dataset):
    def __init__(self, number, labels):
        self.number, self.labels = number, torch.randint(0, labels, (number,))

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return {"input_features": torch.zeros(80, 3000), "labels": self.labels[index]}


def compute_metrics(evaluated):
    predictions = evaluated.predictions
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    return {"accuracy": float((np.argmax(logits, axis=-1) == evaluated.label_ids).mean())}


def main(folder):
    config = WhisperConfig(
        d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048, num_labels=12,
        use_weighted_layer_sum=True,
    )
    model = WhisperForAudioClassification(config)
    model.freeze_encoder()
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, per_device_eval_batch_size=8, max_steps=2, eval_strategy="steps",
        eval_steps=2, save_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Recordings(16, 12), eval_dataset=Recordings(160, 12),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
