import { apiKeyKind } from '#libs/resources/api-keys/api-keys.ts';
import { configKind } from './configs.ts';
import { logExportKind } from './log-exports.ts';
import { trafficReplayKind } from './traffic-replays.ts';
import { inviteKind } from '#libs/people/invites/invites.ts';
import { userKind } from '#libs/people/users/users.ts';
import { rateLimitPolicyKind } from '#libs/resources/limits/rate-limit-policies.ts';
import { usageLimitPolicyKind } from '#libs/resources/limits/usage-limit-policies.ts';
import type { AnyResource } from '#libs/records/define-resource.ts';
import { collectionKind } from '#libs/resources/prompts/collections.ts';
import { labelKind } from '#libs/resources/prompts/labels.ts';
import { priceTableKind } from './price-tables.ts';
import { partialKind } from '#libs/resources/prompts/prompt-partials.ts';
import { promptKind } from '#libs/resources/prompts/prompts.ts';
import { guardrailKind } from './guardrails.ts';
import { publicModelKind } from './public-models.ts';
import { integrationKind } from '#libs/resources/integrations/integrations.ts';
import { providerKind } from '#libs/resources/integrations/providers.ts';
import { siemDestinationKind } from '#libs/resources/siem/siem-destinations.ts';
import { secretReferenceKind } from '#libs/resources/secret-references/secret-references.ts';
import { sessionKind } from '#libs/people/sessions.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { webhookEndpointKind } from '#libs/resources/webhooks/webhook-endpoints.ts';
import { workspaceKind } from '#libs/people/workspaces.ts';

/** All kinds of records on the platform. */
export const resourceKinds: readonly AnyResource[] = [
  workspaceKind,
  userKind,
  inviteKind,
  apiKeyKind,
  sessionKind,
  configKind,
  guardrailKind,
  virtualKeyKind,
  secretReferenceKind,
  integrationKind,
  providerKind,
  publicModelKind,
  collectionKind,
  labelKind,
  partialKind,
  promptKind,
  usageLimitPolicyKind,
  rateLimitPolicyKind,
  priceTableKind,
  logExportKind,
  trafficReplayKind,
  webhookEndpointKind,
  siemDestinationKind,
];
