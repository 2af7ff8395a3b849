# huggingface/transformers#8476; h100:4GiB
"""A language model is fine-tuned for some steps on bills and its accuracy is measured on others by the Trainer."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Bills(Dataset):
    def __init__(self, count, length=256, words=32_000):
        self.count, self.length, self.words = count, length, words

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.randint(0, self.words, (self.length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.clone()}


def compute_metrics(prediction):
    predicted, labels = prediction.predictions, prediction.label_ids
    if predicted.ndim == 3:
        predicted = predicted.argmax(-1)
    return {"accuracy": float((predicted[:, :-1] == labels[:, 1:]).mean())}


def main():
    config = GPT2Config(vocab_size=32_000, n_positions=256, n_embd=384, n_layer=6, n_head=6, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=8,
            max_steps=3,
            learning_rate=5e-5,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Bills(64),
            eval_dataset=Bills(96),
            compute_metrics=compute_metrics,
        )
        trainer.train()
        print(trainer.evaluate())


main()
