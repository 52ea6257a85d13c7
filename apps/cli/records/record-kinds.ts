/** A kind of record as the command line knows it: the name of its commands, its path, and what addresses one. */
export type RecordKind = {
  /** As in files of `sluice apply`. */
  kind: string;
  command: string;
  many: string;
  path: string;
  address: 'slug' | 'id';
  canCreate: boolean;
  canUpdate: boolean;
  canDelete: boolean;
};

const kindOf = (
  kind: string,
  command: string,
  path: string,
  address: 'slug' | 'id',
  rights: Partial<Pick<RecordKind, 'many' | 'canCreate' | 'canUpdate' | 'canDelete'>> = {},
): RecordKind => ({
  kind,
  command,
  path,
  address,
  many: command.replaceAll('-', ' '),
  canCreate: true,
  canUpdate: true,
  canDelete: true,
  ...rights,
});

/**
 * Every kind of record that the server has (libs/resources/resource-kinds.ts; a test compares them), written out here
 * because the commands must exist before a server is asked. What a record has inside is the server's to say.
 */
export const recordKinds: readonly RecordKind[] = [
  kindOf('workspace', 'workspaces', '/v1/admin/workspaces', 'slug'),
  kindOf('user', 'users', '/v1/admin/users', 'id', { canCreate: false }),
  kindOf('invite', 'invites', '/v1/admin/users/invites', 'id', { canUpdate: false, canDelete: false }),
  kindOf('api_key', 'keys', '/v1/api-keys', 'id', { many: 'API keys' }),
  kindOf('session', 'sessions', '/v1/sessions', 'id', { canCreate: false, canUpdate: false }),
  kindOf('config', 'configs', '/v1/configs', 'slug'),
  kindOf('guardrail', 'guardrails', '/v1/guardrails', 'slug'),
  kindOf('virtual_key', 'virtual-keys', '/v1/virtual-keys', 'slug'),
  kindOf('secret_reference', 'secret-references', '/v1/secret-references', 'slug'),
  kindOf('integration', 'integrations', '/v1/integrations', 'slug'),
  kindOf('provider', 'providers', '/v1/providers', 'slug'),
  kindOf('collection', 'collections', '/v1/collections', 'slug'),
  kindOf('label', 'labels', '/v1/labels', 'id'),
  kindOf('prompt_partial', 'partials', '/v1/prompts/partials', 'slug'),
  kindOf('prompt', 'prompts', '/v1/prompts', 'slug'),
  kindOf('usage_limit_policy', 'usage-limits', '/v1/policies/usage-limits', 'id', { many: 'budgets' }),
  kindOf('rate_limit_policy', 'rate-limits', '/v1/policies/rate-limits', 'id', { many: 'rates' }),
  kindOf('price_table', 'price-tables', '/v1/admin/price-tables', 'id', { canUpdate: false }),
  kindOf('log_export', 'log-exports', '/v1/logs/exports', 'id', { canCreate: false, canUpdate: false }),
];
