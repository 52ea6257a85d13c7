import { openAiCompatible } from '../openai-compatible.ts';
import { allRelayAreas } from '../provider.ts';

/** platform.openai.com/docs/api-reference */
export const openai = openAiCompatible({
  id: 'openai',
  baseUrl: 'https://api.openai.com/v1',
  headerSettings: ['openai_organization', 'openai_project', 'openai_beta'],
  relays: allRelayAreas.filter((area) => area !== 'rerank'),
  notes: ['Its models reject JSON mode unless the word “JSON” is in a message.'],
  variant: null,
  fineTuning: true,
});
