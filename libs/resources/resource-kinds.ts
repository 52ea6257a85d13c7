import { apiKeyKind } from './api-keys.ts';
import { configKind } from './configs.ts';
import type { AnyResource } from './define-resource.ts';
import { workspaceKind } from './workspaces.ts';

/** Every kind of record that the platform has. */
export const resourceKinds: readonly AnyResource[] = [workspaceKind, apiKeyKind, configKind];
