import type { WireFormat } from '../wire-format.ts';
import { findAreaRoute } from './areas/find-area-route.ts';
import { findFileRoute } from './files.ts';
import { findTuningRoute, type Tuning } from './fine-tuning.ts';
import { openai } from './openai.ts';

/** OpenAI's interface with the areas beside models, and with the files and fine-tuning jobs of one simulator. */
export function createOpenAi(tuning: Tuning): WireFormat {
  const findMore = (method: string, path: string) => {
    if (path.startsWith('/v1/fine_tuning/')) return findTuningRoute(tuning, method, path);
    if (path.startsWith('/v1/files')) return findFileRoute(tuning.files, method, path);
    return findAreaRoute(method, path);
  };
  return { ...openai, find: (method, path) => openai.find(method, path) ?? findMore(method, path) };
}
