import { createGatewayKey } from '#libs/identity/gateway-key.ts';
import { tokenOf } from '../people-kit.ts';
import type { Step } from './walk.ts';

/** What every kind of record has, about the one that its example makes. */
function ofKind(one: string, many: string, named: Record<string, string>, more: readonly Step[] = []): Step[] {
  return [
    { id: `create${one}` },
    { id: `list${many}` },
    { id: `retrieve${one}`, params: named },
    { id: `update${one}`, params: named },
    ...more,
    { id: `delete${one}`, params: named },
  ];
}

/** The versions that a change has made. */
const versionsOf = (noun: string, named: Record<string, string>): Step[] => [
  { id: `list${noun}Versions`, params: named },
  { id: `retrieve${noun}Version`, params: { ...named, version: '1' } },
];

const atSimulator = { custom_host: 'SIMULATOR' };
const spare = { slug: 'spare', name: 'Spare' };
const integration = { slug: 'company-account' };
const guardrail = { slug: 'no-passwords' };
const partial = { slug: 'closing' };
const prompt = { slug: 'support-reply' };
const endpoint = { id: 'whe_abc' };
const destination = { id: 'siem_abc' };
const ofMain = { 'x-gateway-virtual-key': 'main' };

/** Credentials, configs, guardrails, templates and limits. The virtual key `main` stays, and leads to the simulator. */
export const recordSteps: readonly Step[] = [
  { id: 'retrieveSession' },
  ...ofKind('VirtualKey', 'VirtualKeys', { slug: 'main' }),
  { id: 'createVirtualKey', changes: atSimulator, differs: Object.keys({ ...atSimulator, model_config: null }) },
  ...ofKind('Integration', 'Integrations', integration, [
    { id: 'setIntegrationModels', params: integration },
    { id: 'listIntegrationModels', params: integration },
    { id: 'deleteIntegrationModels', params: integration, query: { slugs: 'gpt-5-mini' } },
    { id: 'setIntegrationWorkspaces', params: integration },
    { id: 'listIntegrationWorkspaces', params: integration },
    ...ofKind('Provider', 'Providers', { slug: 'search' }),
  ]),
  {
    id: 'createVirtualKey',
    changes: { ...atSimulator, ...spare },
    differs: Object.keys({ ...spare, ...atSimulator, model_config: null }),
  },
  { id: 'createConfig' },
  { id: 'explainConfig' },
  { id: 'deleteConfig', params: { slug: 'support' } },
  ...ofKind('Config', 'Configs', { slug: 'support' }, versionsOf('Config', { slug: 'support' })),
  ...ofKind('Guardrail', 'Guardrails', guardrail, versionsOf('Guardrail', guardrail)),
  ...ofKind('PublicModel', 'PublicModels', { slug: 'gpt-4o' }),
  { id: 'setGuardrails' },
  { id: 'retrieveGuardrails' },
  // Areas that are forwarded refuse bodies that they could not judge.
  { id: 'setGuardrails', changes: { input_guardrails: [] }, differs: ['input_guardrails'] },
  ...ofKind('SecretReference', 'SecretReferences', { slug: 'main' }),
  ...ofKind('Collection', 'Collections', { slug: 'support' }),
  ...ofKind('Partial', 'Partials', partial, [
    { id: 'publishPromptPartial', params: partial },
    ...versionsOf('PromptPartial', partial),
  ]),
  { id: 'createLabel' },
  { id: 'listLabels' },
  { id: 'retrieveLabel', params: { id: 'label_abc' } },
  ...ofKind('Prompt', 'Prompts', prompt, [
    { id: 'publishPrompt', params: prompt },
    ...versionsOf('Prompt', prompt),
    { id: 'labelPromptVersion', params: { ...prompt, version: '2' }, changes: { label_id: 'label_abc' } },
    { id: 'renderPrompt', params: prompt },
    { id: 'createPromptCompletion', params: prompt, headers: ofMain, varies: ['content'] },
  ]),
  { id: 'updateLabel', params: { id: 'label_abc' } },
  { id: 'deleteLabel', params: { id: 'label_abc' } },
  ...ofKind('UsageLimitPolicy', 'UsageLimitPolicies', { id: 'policy_abc' }),
  { id: 'createRateLimitPolicy', name: 'policy_rate' },
  { id: 'listRateLimitPolicies' },
  { id: 'retrieveRateLimitPolicy', params: { id: 'policy_rate' } },
  { id: 'updateRateLimitPolicy', params: { id: 'policy_rate' } },
  { id: 'deleteRateLimitPolicy', params: { id: 'policy_rate' } },
  ...ofKind('WebhookEndpoint', 'WebhookEndpoints', endpoint, [
    { id: 'updateWebhookEndpointByPost', params: endpoint },
    { id: 'rotateWebhookSecret', params: endpoint },
  ]),
  // Without events for the address of the example.
  { id: 'createSiemDestination', changes: { enabled: false }, differs: ['enabled'] },
  { id: 'listSiemDestinations', differs: ['enabled'] },
  { id: 'retrieveSiemDestination', params: destination, differs: ['enabled'] },
  { id: 'updateSiemDestination', params: destination, differs: ['enabled'] },
  { id: 'deleteSiemDestination', params: destination },
  { id: 'createPriceTable' },
  { id: 'listPriceTables' },
  { id: 'retrievePriceTable', params: { id: 'price_abc' } },
  { id: 'deletePriceTable', params: { id: 'price_abc' } },
];

const workspace = { slug: 'search' };
const members = { workspaceId: 'search' };
const member = { ...members, userId: 'user_abc' };
const token = { token: 'TOKEN' };

/** Workspaces, people and keys. */
export const peopleSteps: readonly Step[] = [
  { id: 'createWorkspace', name: 'ws_new' },
  { id: 'listWorkspaces' },
  { id: 'retrieveWorkspace', params: workspace },
  { id: 'updateWorkspace', params: workspace },
  { id: 'createInvite' },
  { id: 'listInvites' },
  { id: 'retrieveInvite', params: { id: 'invite_abc' } },
  {
    id: 'resendInvite',
    params: { id: 'invite_abc' },
    keeps: ({ invite_link }) => ({ TOKEN: tokenOf(String(invite_link)) }),
  },
  { id: 'acceptInvite', changes: token },
  { id: 'createInvite', changes: { email: 'grace@example.com' }, differs: ['email'], name: 'invite_new' },
  { id: 'cancelInvite', params: { id: 'invite_new' }, differs: ['email'] },
  { id: 'createInvite', changes: { email: 'alan@example.com' }, differs: ['email'] },
  { id: 'listUsers' },
  { id: 'retrieveUser', params: { id: 'user_abc' } },
  { id: 'addMembers', params: members },
  { id: 'listMembers', params: members },
  { id: 'retrieveMember', params: member },
  { id: 'updateMember', params: member },
  { id: 'removeMember', params: member },
  { id: 'updateUser', params: { id: 'user_abc' } },
  { id: 'deleteUser', params: { id: 'user_abc' } },
  { id: 'deleteWorkspace', params: workspace },
  { id: 'createApiKey', name: 'key_new', varies: ['last_four'] },
  { id: 'listApiKeys', varies: ['last_four', 'key'] },
  { id: 'retrieveApiKey', params: { id: 'key_new' }, varies: ['last_four', 'key'] },
  { id: 'updateApiKey', params: { id: 'key_new' }, varies: ['last_four', 'key'] },
  { id: 'rotateApiKey', params: { id: 'key_new' }, varies: ['last_four', 'key'] },
  { id: 'deleteApiKey', params: { id: 'key_new' } },
  { id: 'reportLeakedApiKey', changes: { key: createGatewayKey().reveal() } },
  { id: 'createApiKeyOfType', params: { type: 'workspace', sub_type: 'service' }, varies: ['last_four'] },
];
