import type { SimulatorOptions } from './options.ts';
import { createFileStore } from './tuning/file-store.ts';
import { createJobStore } from './tuning/job-store.ts';
import { anthropic } from './wire/anthropic/anthropic.ts';
import { findAreaRoute } from './wire/openai/areas/find-area-route.ts';
import { findFileRoute } from './wire/openai/files.ts';
import { findTuningRoute, type Tuning } from './wire/openai/fine-tuning.ts';
import { openai } from './wire/openai/openai.ts';
import type { FindWire, WireFormat } from './wire/wire-format.ts';

/**
 * Finds the API that a path belongs to; undefined for the simulator's own paths. A request for models with the header
 * anthropic-version is for Anthropic, any other is for OpenAI.
 */
export function createWireFinder({ clock, trainingMs, findOther }: SimulatorOptions): FindWire {
  const files = createFileStore(clock);
  const openAi = createOpenAi({ files, jobs: createJobStore({ clock, files }), clock, trainingMs });
  return (path, query, headers) => {
    const other = findOther?.(path, query, headers);
    if (other !== undefined) return other;
    if (!path.startsWith('/v1/')) return undefined;
    if (path.startsWith('/v1/messages')) return anthropic;
    const isOfModels = path === '/v1/models' || path.startsWith('/v1/models/');
    return isOfModels && headers['anthropic-version'] !== undefined ? anthropic : openAi;
  };
}

/** OpenAI's API with all areas, and with the files and fine-tuning jobs of one simulator. */
function createOpenAi(tuning: Tuning): WireFormat {
  const findMore = (method: string, path: string) => {
    if (path.startsWith('/v1/fine_tuning/')) return findTuningRoute(tuning, method, path);
    if (path.startsWith('/v1/files')) return findFileRoute(tuning.files, method, path);
    return findAreaRoute(method, path);
  };
  return { ...openai, find: (method, path) => openai.find(method, path) ?? findMore(method, path) };
}
