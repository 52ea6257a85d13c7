import { createHash } from 'node:crypto';
import OpenAI, { toStreamingFile } from 'openai';
import { expect, onTestFinished, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { startPlatform } from '#test/platform.ts';
import { startApiProcess } from './api-process.ts';

const mebibyte = 1_048_576;

/** Resident memory of the process in bytes, as its own metrics tell it. */
async function residentBytes(url: string): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text();
  const value = /^process_resident_memory_bytes (\S+)$/m.exec(text)?.[1];
  if (value === undefined) throw new Error('the metrics do not tell the resident memory');
  return Number(value);
}

/** The most memory that the process had while the work ran. */
async function peakWhile<Result>(url: string, work: Promise<Result>): Promise<{ result: Result; peak: number }> {
  const ended = new AbortController();
  const result = work.finally(() => ended.abort());
  let peak = 0;
  while (!ended.signal.aborted) {
    peak = Math.max(peak, await residentBytes(url));
    await sleep(50, ended.signal);
  }
  return { result: await result, peak };
}

// Lines of a batch file, each another one, so that nothing can be taken for anything else.
async function* lines(sizeBytes: number, onChunk: (chunk: Buffer) => void): AsyncGenerator<Buffer> {
  for (let sent = 0, line = 0; sent < sizeBytes;) {
    let text = '';
    while (text.length < 65_536) text += `${JSON.stringify({ custom_id: `${(line += 1)}`, body: 'x'.repeat(900) })}\n`;
    const chunk = Buffer.from(text).subarray(0, sizeBytes - sent);
    sent += chunk.length;
    onChunk(chunk);
    yield chunk;
  }
}

// The SDKs differ in nothing that the server sees here, and only the newer one can stream an upload.
test('200 MB go up and come down byte for byte, and the memory stays flat', async () => {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const baseURL = await startApiProcess(platform);
  const url = new URL(baseURL).origin;
  const client = new OpenAI({ apiKey: platform.adminKey, baseURL });
  const uploadOf = async (sizeBytes: number, onChunk: (chunk: Buffer) => void = () => {}) =>
    await client.files.create({
      file: toStreamingFile(lines(sizeBytes, onChunk), 'large.jsonl'),
      purpose: 'batch',
    });
  // Once through everything first: code that runs for the first time takes memory that it does not give back.
  const small = await uploadOf(8 * mebibyte);
  await (await client.files.content(small.id)).arrayBuffer();
  const before = await residentBytes(url);

  const sizeBytes = 200 * mebibyte;
  const sent = createHash('sha256');
  const { result: file, peak: uploadPeak } = await peakWhile(
    url,
    uploadOf(sizeBytes, (chunk) => sent.update(chunk)),
  );
  expect(file.bytes).toBe(sizeBytes);
  const download = async (): Promise<string> => {
    const received = createHash('sha256');
    const { body } = await client.files.content(file.id);
    if (body === null) throw new Error('the content has no body');
    for await (const chunk of body) received.update(chunk);
    return received.digest('hex');
  };
  const { result: sha256, peak: downloadPeak } = await peakWhile(url, download());
  expect(sha256).toBe(sent.digest('hex'));
  expect(Math.max(uploadPeak, downloadPeak) - before).toBeLessThan(100 * mebibyte);
});
