import { apiKeyKind } from './api-keys.ts';
import { configKind } from './configs.ts';
import type { AnyResource } from './define-resource.ts';

/** Every kind of record that the platform has. */
export const resourceKinds: readonly AnyResource[] = [apiKeyKind, configKind];
