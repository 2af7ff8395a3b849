# devnen/Chatterbox-TTS-Server#166; h100:3GiB
"""Serves speech in the voices of reference recordings: each request names a voice and a text, and gets a waveform."""

import torch
from torch import nn


class VoiceEncoder(nn.Module):
    def __init__(self, mels=40, width=256):
        super().__init__()
        self.lstm, self.project = nn.LSTM(mels, width, 3, batch_first=True), nn.Linear(width, width)

    def forward(self, mel, partial=160):
        partials = mel.unfold(1, partial, partial // 2)[0].transpose(1, 2)
        _, (hidden, _) = self.lstm(partials)
        return nn.functional.normalize(self.project(hidden[-1]).mean(0, keepdim=True), dim=-1)


class ReferenceEncoder(nn.Module):
    """Tokens and a speaker's vector of a reference, for the decoder of waveforms."""

    def __init__(self, mels=80, width=512, layers=6, heads=8):
        super().__init__()
        convolutions = nn.Conv1d(mels, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        self.inside = nn.Sequential(*convolutions)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.codebook, self.speaker = nn.Linear(width, 6561), nn.Linear(width, 192)

    def forward(self, mel):
        x = self.layers(self.inside(mel.transpose(1, 2)).transpose(1, 2))
        return self.codebook(x).argmax(-1), self.speaker(x.mean(1))


class SpeechTokens(nn.Module):
    def __init__(self, width=512, layers=8, texts=704, tokens=6563):
        super().__init__()
        self.text, self.token, self.voice = nn.Embedding(texts, width), nn.Embedding(tokens, width), nn.Linear(256, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, tokens)

    @torch.inference_mode()
    def inference(self, voice, text, steps=24):
        tokens = torch.zeros(1, 1, dtype=torch.long, device=text.device)
        for _ in range(steps):
            x = torch.cat([self.voice(voice).unsqueeze(1), self.text(text), self.token(tokens)], 1)
            tokens = torch.cat([tokens, self.head(self.layers(x)[:, -1]).argmax(-1, keepdim=True)], 1)
        return tokens


class Vocoder(nn.Module):
    def __init__(self, tokens=6563, width=256):
        super().__init__()
        self.token, self.speaker = nn.Embedding(tokens, width), nn.Linear(192, width)
        self.upsample = nn.Sequential(
            nn.ConvTranspose1d(width, width // 2, 16, 8, 4), nn.GELU(), nn.ConvTranspose1d(width // 2, 1, 120, 120)
        )

    @torch.inference_mode()
    def inference(self, tokens, speaker):
        return self.upsample((self.token(tokens) + self.speaker(speaker).unsqueeze(1)).transpose(1, 2))


class TTS:
    def __init__(self, device="cuda"):
        self.device, self.conds = device, None
        self.voice_encoder, self.reference = VoiceEncoder().to(device).eval(), ReferenceEncoder().to(device).eval()
        self.speech_tokens, self.vocoder = SpeechTokens().to(device).eval(), Vocoder().to(device).eval()

    def prepare_conditionals(self, recording):
        tokens, speaker = self.reference(recording["mel80"].to(self.device))
        self.conds = {"voice": self.voice_encoder(recording["mel40"].to(self.device)), "tokens": tokens, "speaker": speaker}

    def generate(self, text, recording=None):
        if recording is not None:
            self.prepare_conditionals(recording)
        tokens = self.speech_tokens.inference(self.conds["voice"], text.to(self.device))
        return self.vocoder.inference(torch.cat([self.conds["tokens"], tokens], 1), self.conds["speaker"]).squeeze().cpu()


class Engine:
    def __init__(self):
        self.tts, self._conds_cache = TTS(), {}

    def synthesize(self, voice, text, recordings):
        if voice in self._conds_cache:
            self.tts.conds = self._conds_cache[voice]
            return self.tts.generate(text)
        waveform = self.tts.generate(text, recordings[voice])
        self._conds_cache[voice] = self.tts.conds
        return waveform


engine = Engine()
recordings = {f"voice{i:02}": {"mel40": torch.rand(1, 1000, 40), "mel80": torch.rand(1, 1000, 80)} for i in range(36)}
for request in range(48):
    waveform = engine.synthesize(f"voice{request % 36:02}", torch.randint(704, (1, 60)), recordings)
    print(request, len(waveform))
