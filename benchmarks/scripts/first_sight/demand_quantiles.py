# sktime/pytorch-forecasting#322; h100:3GiB
"""Forecasts the demand of many shops with a temporal fusion transformer, and looks at what the forecasts were made of."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, windows, encoder_length=168, decoder_length=24, variables=20):
        self.series = torch.randn(4096, variables)
        self.windows, self.encoder_length, self.decoder_length = windows, encoder_length, decoder_length

    def __len__(self):
        return self.windows

    def __getitem__(self, i):
        start = i % (len(self.series) - self.encoder_length - self.decoder_length)
        middle = start + self.encoder_length
        return {"encoder_cont": self.series[start:middle], "decoder_cont": self.series[middle : middle + self.decoder_length]}


class VariableSelection(nn.Module):
    def __init__(self, variables, width):
        super().__init__()
        self.weights, self.values = nn.Linear(variables, variables), nn.Linear(variables, width)

    def forward(self, x):
        weights = self.weights(x).softmax(-1)
        return self.values(x * weights), weights


class TemporalFusionTransformer(nn.Module):
    def __init__(self, variables=20, width=32, heads=4, quantiles=7):
        super().__init__()
        self.heads = heads
        self.encoder_selection, self.decoder_selection = VariableSelection(variables, width), VariableSelection(variables, width)
        self.lstm_encoder, self.lstm_decoder = nn.LSTM(width, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ELU(), nn.Linear(width, quantiles))

    def forward(self, x):
        encoder, encoder_variables = self.encoder_selection(x["encoder_cont"])
        decoder, decoder_variables = self.decoder_selection(x["decoder_cont"])
        encoder, state = self.lstm_encoder(encoder)
        decoder, _ = self.lstm_decoder(decoder, state)
        both = torch.cat([encoder, decoder], 1)
        q, k, v = (f(t).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, t in ((self.query, decoder), (self.key, both), (self.value, both)))
        attention = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        attended = (attention @ v).transpose(1, 2).flatten(2)
        length = x["encoder_cont"].shape[1]
        return {
            "prediction": self.output(attended + decoder),
            "encoder_attention": attention[..., :length],
            "decoder_attention": attention[..., length:],
            "encoder_variables": encoder_variables,
            "decoder_variables": decoder_variables,
        }

    def predict(self, dataloader, return_x=False):
        self.eval()
        output, x_list = [], []
        with torch.no_grad():
            for x in dataloader:
                x = {name: value.to(self.query.weight.device) for name, value in x.items()}
                out = self(x)
                output.append(out)
                if return_x:
                    x_list.append(x)
        output = {name: torch.cat([out[name] for out in output]) for name in output[0]}
        if not return_x:
            return output
        return output, {name: torch.cat([x[name] for x in x_list]) for name in x_list[0]}


model = TemporalFusionTransformer().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x in DataLoader(Windows(1024), batch_size=256):
    x = {name: value.cuda() for name, value in x.items()}
    error = x["decoder_cont"][..., :1] - model(x)["prediction"]
    levels = torch.linspace(0.02, 0.98, 7, device="cuda")
    loss = torch.maximum(levels * error, (levels - 1) * error).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())

raw_predictions, x = model.predict(DataLoader(Windows(24 * 1024), batch_size=1024), return_x=True)
print(raw_predictions["prediction"].shape, raw_predictions["encoder_attention"].mean((0, 1, 2)).argmax().item())
