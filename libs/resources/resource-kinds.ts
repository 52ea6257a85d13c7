import type { AnyResource } from './define-resource.ts';

/** Every kind of record that the platform has. */
export const resourceKinds: readonly AnyResource[] = [];
