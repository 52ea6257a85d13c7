import type { Usage } from '#libs/prices/usage.ts';
import { readGenerateFinish, readGenerateUsage } from '#libs/providers/generate-content/generate-usage.ts';
import { asRecord } from '../usage.ts';
import type { PayloadView, StreamMeter } from './stream-meter.ts';

/** How many candidates one stream can have; Google allows eight. */
const candidatesMax = 128;

/** Meters one stream of Google's streamGenerateContent. A class because one is made for every such call. */
export class GenerateMeter implements StreamMeter {
  /** Whether each candidate has finished, by its index. */
  readonly #candidates = new Map<number, boolean>();
  #usage: Usage | null = null;
  #model: string | null = null;
  #finishReason: string | null = null;
  #chars = 0;

  read(payload: string): PayloadView {
    let parsed: unknown;
    try {
      parsed = JSON.parse(payload);
    } catch {
      return 'unreadable';
    }
    if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return 'unreadable';
    const body = asRecord(parsed);
    const { error, candidates, modelVersion } = body;
    if (error !== undefined && error !== null) return 'error';
    if (typeof modelVersion === 'string') this.#model = modelVersion;
    const usage = readGenerateUsage(body);
    // Later counts replace earlier ones; a search in between still has to be paid for.
    if (usage !== null) this.#usage = { ...this.#usage, ...usage };
    this.#finishReason = readGenerateFinish(body) ?? this.#finishReason;
    if (Array.isArray(candidates)) for (const candidate of candidates) this.#count(asRecord(candidate));
    return 'chunk';
  }

  #count({ index, content, finishReason }: Readonly<Record<string, unknown>>): void {
    const key = typeof index === 'number' ? index : 0;
    if (!this.#candidates.has(key) && this.#candidates.size >= candidatesMax) return;
    const isFinished = typeof finishReason === 'string' && finishReason !== 'FINISH_REASON_UNSPECIFIED';
    this.#candidates.set(key, isFinished || this.#candidates.get(key) === true);
    const { parts } = asRecord(content);
    for (const part of Array.isArray(parts) ? parts : []) {
      const { text, functionCall } = asRecord(part);
      if (typeof text === 'string') this.#chars += text.length;
      else if (functionCall !== undefined) this.#chars += JSON.stringify(functionCall).length;
    }
  }

  /** null until the end: earlier counts lack a part of the output. */
  usage(): Usage | null {
    return this.allFinished() ? this.#usage : null;
  }

  model(): string | null {
    return this.#model;
  }

  finishReason(): string | null {
    return this.#finishReason;
  }

  allFinished(): boolean {
    const isBlocked = this.#candidates.size === 0 && this.#finishReason !== null;
    return isBlocked || (this.#candidates.size > 0 && [...this.#candidates.values()].every(Boolean));
  }

  chars(): number {
    return this.#chars;
  }

  missingUsageChunk(): null {
    return null;
  }
}
