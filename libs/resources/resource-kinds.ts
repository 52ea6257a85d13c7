import { apiKeyKind } from './api-keys.ts';
import { configKind } from './configs.ts';
import { logExportKind } from './log-exports.ts';
import { inviteKind } from './invites.ts';
import { userKind } from './users.ts';
import { rateLimitPolicyKind } from './rate-limit-policies.ts';
import { usageLimitPolicyKind } from './usage-limit-policies.ts';
import type { AnyResource } from './define-resource.ts';
import { collectionKind } from './collections.ts';
import { labelKind } from './labels.ts';
import { priceTableKind } from './price-tables.ts';
import { partialKind } from './prompt-partials.ts';
import { promptKind } from './prompts.ts';
import { guardrailKind } from './guardrails.ts';
import { integrationKind } from './integrations.ts';
import { providerKind } from './providers.ts';
import { secretReferenceKind } from './secret-references.ts';
import { sessionKind } from './sessions.ts';
import { virtualKeyKind } from './virtual-keys.ts';
import { workspaceKind } from './workspaces.ts';

/** Every kind of record that the platform has. */
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
  collectionKind,
  labelKind,
  partialKind,
  promptKind,
  usageLimitPolicyKind,
  rateLimitPolicyKind,
  priceTableKind,
  logExportKind,
];
