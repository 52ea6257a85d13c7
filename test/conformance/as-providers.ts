import type { FindWire } from '#apps/simulator/wire/wire-format.ts';
import { systemClock, type Clock } from '#libs/kernel/clock.ts';
import { bedrock } from './formats/bedrock/bedrock.ts';
import { cohere } from './formats/cohere/cohere.ts';
import { gemini } from './formats/gemini/gemini.ts';
import { createTokenServer } from './formats/vertex/token.ts';
import { createVertex } from './formats/vertex/vertex.ts';
import { checkStrictly } from './strict/strict-requests.ts';

/** Options with which the simulator speaks the formats of all providers and judges requests as they do. */
export const asProviders = (clock: Clock = systemClock) => ({ check: checkStrictly, findOther: createFinder(clock) });

// Query parameters that only Cohere's list of models has.
const cohereQuery = /(^|&)(page_size|page_token|endpoint|default_only)=/;

/** GET /v1/models with x-client-name, which Cohere's clients send, or one of Cohere's query parameters is for Cohere. */
function createFinder(clock: Clock): FindWire {
  const vertex = createVertex({ clock });
  const tokenServer = createTokenServer({ clock });
  return (path, query, headers) => {
    if (path.startsWith('/model/')) return bedrock;
    if (path.startsWith('/v1beta/')) return gemini;
    if (path.startsWith('/v1/projects/')) return vertex;
    if (path.startsWith('/v2/')) return cohere;
    if (path === '/token') return tokenServer;
    const isOfModels = path === '/v1/models' || path.startsWith('/v1/models/');
    if (!isOfModels || headers['anthropic-version'] !== undefined) return undefined;
    return headers['x-client-name'] !== undefined || cohereQuery.test(query) ? cohere : undefined;
  };
}
