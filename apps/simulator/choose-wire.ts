import type { IncomingHttpHeaders } from 'node:http';
import type { SimulatorOptions } from './options.ts';
import { createFileStore } from './tuning/file-store.ts';
import { createJobStore } from './tuning/job-store.ts';
import { anthropic } from './wire/anthropic/anthropic.ts';
import { bedrock } from './wire/bedrock/bedrock.ts';
import { cohere } from './wire/cohere/cohere.ts';
import { gemini } from './wire/gemini/gemini.ts';
import { findAreaRoute } from './wire/openai/areas/find-area-route.ts';
import { findFileRoute } from './wire/openai/files.ts';
import { findTuningRoute, type Tuning } from './wire/openai/fine-tuning.ts';
import { openai } from './wire/openai/openai.ts';
import { createTokenServer } from './wire/vertex/token.ts';
import { createVertex } from './wire/vertex/vertex.ts';
import type { WireFormat } from './wire/wire-format.ts';

// Query parameters that only Cohere's list of models has.
const cohereQuery = /(^|&)(page_size|page_token|endpoint|default_only)=/;

/**
 * Finds the API that a path belongs to; undefined for the simulator's own paths. Three providers share GET /v1/models: a
 * request with the header anthropic-version is for Anthropic; one with x-client-name (which Cohere's clients send) or one of
 * Cohere's query parameters (like page_size) is for Cohere; any other is for OpenAI.
 */
export function createWireFinder({ clock, trainingMs }: SimulatorOptions) {
  const files = createFileStore(clock);
  const openAi = createOpenAi({ files, jobs: createJobStore({ clock, files }), clock, trainingMs });
  const vertex = createVertex({ clock });
  const tokenServer = createTokenServer({ clock });

  const ofModels = (query: string, headers: IncomingHttpHeaders): WireFormat => {
    if (headers['anthropic-version'] !== undefined) return anthropic;
    return headers['x-client-name'] !== undefined || cohereQuery.test(query) ? cohere : openAi;
  };
  const elsewhere = (path: string): WireFormat | undefined => {
    if (path.startsWith('/model/')) return bedrock;
    if (path.startsWith('/v1beta/')) return gemini;
    if (path.startsWith('/v2/')) return cohere;
    return path === '/token' ? tokenServer : undefined;
  };
  return (path: string, query: string, headers: IncomingHttpHeaders): WireFormat | undefined => {
    if (!path.startsWith('/v1/')) return elsewhere(path);
    if (path.startsWith('/v1/chat/')) return openAi;
    if (path.startsWith('/v1/messages')) return anthropic;
    if (path.startsWith('/v1/projects/')) return vertex;
    return path === '/v1/models' || path.startsWith('/v1/models/') ? ofModels(query, headers) : openAi;
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
