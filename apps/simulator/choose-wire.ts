import type { IncomingHttpHeaders } from 'node:http';
import type { SimulatorOptions } from './options.ts';
import { anthropic } from './wire/anthropic/anthropic.ts';
import { createFileStore } from './tuning/file-store.ts';
import { createJobStore } from './tuning/job-store.ts';
import { createOpenAi } from './wire/openai/openai.ts';
import type { WireFormat } from './wire/wire-format.ts';

/**
 * Whose interface a path belongs to; undefined for the simulator's own. Providers share /v1/models: a header or a query
 * parameter that only one of them knows tells whose list is meant, and without one it is OpenAI's.
 */
export function createWireFinder({ clock, trainingMs }: SimulatorOptions) {
  const files = createFileStore(clock);
  const openai = createOpenAi({ files, jobs: createJobStore({ clock, files }), clock, trainingMs });
  return (path: string, _query: string, headers: IncomingHttpHeaders): WireFormat | undefined => {
    if (!path.startsWith('/v1/')) return undefined;
    if (path.startsWith('/v1/chat/')) return openai;
    if (path.startsWith('/v1/messages')) return anthropic;
    if (/^\/v1\/models(\/|$)/.test(path) && headers['anthropic-version'] !== undefined) return anthropic;
    return openai;
  };
}
